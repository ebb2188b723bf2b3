// The interface between PiBench and an index, in our words: layout-compatible with `include/tree_api.hpp` of
// https://github.com/sfu-dis/pibench, so that the shim can be built without a copy of PiBench. The order of the virtual
// functions is the binary interface, and PiBench's branches differ in it. Without a macro this header is that of `master`.
//
//                                              defines                            virtual functions in order
//     master                                   -                                  find .. scan
//     branches with bulk loading               PIBENCH_API_BULK_LOAD              bulk_load, find .. scan
//     branches tls-cleanup, insert-remove      PIBENCH_API_BULK_LOAD, _TLS_SETUP  bulk_load, find .. scan, tls_setup
//     branch optiql                            those two and _DATA                as tls-cleanup
//
// The shim is compiled with the first or the second; the tests call it through all four.
//
// To build against the header of the PiBench that will load the shim, set PIBENCH_INCLUDE_DIR; this one is then unused.
#ifndef INDELIBLE_PIBENCH_TREE_API_HPP
#define INDELIBLE_PIBENCH_TREE_API_HPP

#include <cstddef>
#include <string>

// What PiBench's command line says of the index.
struct tree_options_t
{
    size_t key_size = 8;        // bytes of a key, prefix included
    size_t value_size = 8;      // bytes of a value
    std::string pool_path = ""; // --pool_path
    size_t pool_size = 0;       // --pool_size, bytes
    size_t num_threads = 1;     // threads that will call the index
#ifdef PIBENCH_API_DATA
    void* data = nullptr; // the benchmark's epochs, for indexes that reclaim memory by them
#endif
};

class tree_api;

// What PiBench looks up in the library. Null means that there is no index to be had with these options.
extern "C" tree_api* create_tree(const tree_options_t& opt);

// An index. PiBench calls it from all its threads at once, and deletes it at the end.
class tree_api
{
public:
    virtual ~tree_api() {}

#ifdef PIBENCH_API_BULK_LOAD
    // Fills an empty index with records that lie one after the other, key before value, in any order.
    virtual bool bulk_load(const char* data, size_t num_records, size_t key_sz, size_t value_sz)
    {
        (void)data, (void)num_records, (void)key_sz, (void)value_sz;
        return false;
    }
#endif

    // Copies the value of a key to `value_out`; false if the key is not there.
    virtual bool find(const char* key, size_t sz, char* value_out) = 0;

    // Adds a record; false, with nothing changed, if the key is there.
    virtual bool insert(const char* key, size_t key_sz, const char* value, size_t value_sz) = 0;

    // Changes the value of a key; false if the key is not there.
    virtual bool update(const char* key, size_t key_sz, const char* value, size_t value_sz) = 0;

    // Removes a key; false if the key is not there.
    virtual bool remove(const char* key, size_t key_sz) = 0;

    // Up to `scan_sz` records from `key` on, in ascending order of their keys: returns how many, and where they lie one
    // after the other, key before value. They stay there until the thread's next scan.
    virtual int scan(const char* key, size_t key_sz, int scan_sz, char*& values_out) = 0;

#ifdef PIBENCH_API_TLS_SETUP
    // Called by every thread before its first operation.
    virtual void tls_setup() {}
#endif
};

#endif
