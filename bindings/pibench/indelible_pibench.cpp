// PiBench's `tree_api` over indelible's C interface. See README.md for how keys are ordered and what can be set.

#include "common.hpp"
#include "string_tree.hpp"
#include "tree_api.hpp"
#include "word_codec.hpp"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace
{

// The longest key and the longest value: the longest key of the C interface's maps of byte strings, whose values may have 1 GiB, and more
// than a benchmark asks for.
constexpr size_t MOST_BYTES = 64 << 10;

class indelible_tree final : public tree_api
{
public:
    indelible_tree(pool_handle pool, map_handle map, word_codec keys, word_codec values)
        : pool_(std::move(pool)), map_(std::move(map)), keys_(keys), values_(values)
    {
    }

    // Neither `virtual` nor `override`: it is virtual if it is so in `tree_api`, and otherwise must not take a place in
    // the table of virtual functions.
    bool bulk_load(const char* data, size_t num_records, size_t key_sz, size_t value_sz)
    {
        if (!fits(key_sz, value_sz))
            return false;
        std::vector<indelible_record> records(num_records);
        for (auto& record : records)
        {
            record = {keys_.decode(data), values_.decode(data + key_sz)};
            data += key_sz + value_sz;
        }
        std::sort(records.begin(), records.end(), [](auto& a, auto& b) { return a.key < b.key; });
        return done(indelible_bulk_load(map_.get(), records.data(), records.size(), BULK_FILL));
    }

    bool find(const char* key, size_t sz, char* value_out) override
    {
        uint64_t value;
        if (!fits(sz) || !done(indelible_get(map_.get(), keys_.decode(key), &value)))
            return false;
        values_.encode(value, value_out);
        return true;
    }

    bool insert(const char* key, size_t key_sz, const char* value, size_t value_sz) override
    {
        return fits(key_sz, value_sz) &&
               done(indelible_insert_new(map_.get(), keys_.decode(key), values_.decode(value)));
    }

    bool update(const char* key, size_t key_sz, const char* value, size_t value_sz) override
    {
        return fits(key_sz, value_sz) &&
               done(indelible_update(map_.get(), keys_.decode(key), values_.decode(value)));
    }

    bool remove(const char* key, size_t key_sz) override
    {
        return fits(key_sz) && done(indelible_remove(map_.get(), keys_.decode(key)));
    }

    int scan(const char* key, size_t key_sz, int scan_sz, char*& values_out) override
    {
        static thread_local std::vector<indelible_record> records;
        if (scan_sz <= 0 || !fits(key_sz))
            return 0;
        // Only ever grows: clearing it would be work that is no part of a scan.
        if (records.size() < static_cast<size_t>(scan_sz))
            records.resize(scan_sz);
        size_t count = 0;
        if (!done(indelible_range(map_.get(), keys_.decode(key), UINT64_MAX, records.data(), scan_sz, &count)))
            return 0;
        values_out = laid_out(records, count);
        return static_cast<int>(count);
    }

    // Some branches of PiBench have this last in `tree_api`. Where ours does not, it still stands behind `scan`, the place
    // at which those branches call it and nobody else looks. Our threads need no setup.
    virtual void tls_setup() {}

    // One more entry, so that a PiBench whose `tree_api` has a function more than ours lives to reach refuse_sizes().
    virtual void unused() {}

private:
    // Whether a call keeps to the sizes that the tree was created with.
    bool fits(size_t key_sz) const { return key_sz == keys_.size() || refuse_sizes(); }
    bool fits(size_t key_sz, size_t value_sz) const
    {
        return (key_sz == keys_.size() && value_sz == values_.size()) || refuse_sizes();
    }

    // The first `count` records as PiBench wants them: key before value, nothing in between.
    char* laid_out(std::vector<indelible_record>& records, size_t count) const
    {
        if (keys_.is_identity() && values_.is_identity())
            return reinterpret_cast<char*>(records.data());
        static thread_local std::vector<char> strings;
        const size_t record_sz = keys_.size() + values_.size();
        if (strings.size() < count * record_sz)
            strings.resize(count * record_sz);
        char* at = strings.data();
        for (size_t i = 0; i < count; ++i, at += record_sz)
        {
            keys_.encode(records[i].key, at);
            values_.encode(records[i].value, at + keys_.size());
        }
        return strings.data();
    }

    pool_handle pool_; // closed after the map
    map_handle map_;
    const word_codec keys_;
    const word_codec values_;
};

std::string environment(const char* name)
{
    const char* value = getenv(name);
    return value == nullptr ? "" : value;
}

byte_order wanted_order()
{
    const auto order = environment("INDELIBLE_PIBENCH_ORDER");
    if (order.empty() || order == "native")
        return byte_order::native;
    if (order == "bytes")
        return byte_order::bytes;
    throw std::invalid_argument("INDELIBLE_PIBENCH_ORDER is native or bytes, not " + order);
}

uint32_t wanted_durability()
{
    const auto durability = environment("INDELIBLE_PIBENCH_DURABILITY");
    if (durability.empty())
        return INDELIBLE_DURABILITY_RECORDED;
    if (durability == "process")
        return INDELIBLE_DURABILITY_PROCESS;
    if (durability == "power-loss")
        return INDELIBLE_DURABILITY_POWER_LOSS;
    if (durability == "forced")
        return INDELIBLE_DURABILITY_POWER_LOSS_FORCED;
    throw std::invalid_argument("INDELIBLE_PIBENCH_DURABILITY is process, power-loss or forced, not " + durability);
}

void check_size(const char* what, size_t size)
{
    if (size < 1 || size > MOST_BYTES)
        throw std::invalid_argument(std::string(what) + " of 1 to " + std::to_string(MOST_BYTES) + " bytes, not of " +
                                    std::to_string(size));
}

// Whether keys and values are words; otherwise they are byte strings.
bool are_words(const tree_options_t& opt)
{
    return opt.key_size <= sizeof(uint64_t) && opt.value_size <= sizeof(uint64_t);
}

// A pool, where it is, and whether it has just been created.
struct opened_pool
{
    pool_handle handle;
    std::string place;
    bool is_new;
};

opened_pool open_pool(const tree_options_t& opt)
{
    const auto durability = wanted_durability();
    indelible_pool* pool = nullptr;
    if (opt.pool_path.empty())
    {
        // Memory keeps none of these promises.
        if (durability != INDELIBLE_DURABILITY_RECORDED)
            throw std::invalid_argument("INDELIBLE_PIBENCH_DURABILITY needs a --pool_path");
        check(indelible_pool_in_memory(opt.pool_size, &pool), "a pool in memory");
        return {pool_handle(pool), "memory (no --pool_path)", false};
    }
    auto path = opt.pool_path;
    struct stat found;
    if (stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode))
        path += "/indelible.pool";
    const bool is_new = stat(path.c_str(), &found) != 0;
    check(indelible_pool_open_or_create(path.c_str(), durability, opt.pool_size, &pool), "--pool_path");
    return {pool_handle(pool), path, is_new};
}

bool is_empty(indelible_map* map)
{
    // Not indelible_len: after a crash, that counts all records first.
    indelible_record record;
    size_t count = 0;
    check(indelible_range(map, 0, UINT64_MAX, &record, 1, &count), "reading the map");
    return count == 0;
}

bool is_empty(indelible_bytes* map)
{
    indelible_bytes_cursor* cursor = nullptr;
    check(indelible_bytes_range(map, nullptr, 0, nullptr, 0, &cursor), "reading the map");
    const uint8_t *key, *value;
    size_t key_sz, value_sz;
    const auto read = indelible_bytes_cursor_next(cursor, &key, &key_sz, &value, &value_sz);
    indelible_bytes_cursor_close(cursor);
    check(read, "reading the map");
    return read == INDELIBLE_STATUS_ABSENT;
}

// The name of a map says what its records mean and how it was to be laid out, so that a pool that was loaded with other
// sizes, another order or another kind of index is neither misread nor mismeasured.
std::string map_name(const tree_options_t& opt, const std::string& kind, const char* order)
{
    auto name = "pibench " + std::to_string(opt.key_size) + "+" + std::to_string(opt.value_size) + " " + order;
    if (!kind.empty())
        name += " " + kind.substr(kind.rfind("kind=", 0) == 0 ? strlen("kind=") : 0);
    return name;
}

// Whether PiBench is about to load records is not for us to know: with --skip_load, every lookup would miss.
template <typename map>
void tell_if_empty(const opened_pool& pool, const std::string& name, map* opened)
{
    if (pool.is_new)
        fprintf(stderr, "indelible: %s was not there and has been created; a run that loads no records measures an empty map\n",
                pool.place.c_str());
    else if (is_empty(opened))
        fprintf(stderr, "indelible: the map \"%s\" in %s is empty; a run that loads no records measures an empty map\n",
                name.c_str(), pool.place.c_str());
}

// Opens the map of words for records of these sizes.
map_handle open_map(const opened_pool& pool, const tree_options_t& opt, byte_order order)
{
    const auto kind = environment("INDELIBLE_PIBENCH_KIND");
    const auto name = map_name(opt, kind, order == byte_order::bytes ? "bytes" : "native");
    indelible_map* opened = nullptr;
    check(indelible_map_open_with(pool.handle.get(), name.c_str(), kind.c_str(), &opened), "the map \"" + name + "\"");
    map_handle map(opened);
    tell_if_empty(pool, name, map.get());
    return map;
}

// Opens the map of byte strings for records of these sizes.
bytes_handle open_strings(const opened_pool& pool, const tree_options_t& opt)
{
    if (environment("INDELIBLE_PIBENCH_ORDER") == "native")
        throw std::invalid_argument("keys or values of more than 8 bytes are byte strings: INDELIBLE_PIBENCH_ORDER is bytes or unset");
    const auto kind = environment("INDELIBLE_PIBENCH_KIND");
    const auto name = map_name(opt, kind, "strings");
    indelible_bytes* opened = nullptr;
    check(indelible_bytes_open(pool.handle.get(), name.c_str(), kind.c_str(), &opened), "the map \"" + name + "\"");
    bytes_handle map(opened);
    tell_if_empty(pool, name, map.get());
    return map;
}

} // namespace

extern "C" tree_api* create_tree(const tree_options_t& opt)
try
{
    check_size("indelible holds keys", opt.key_size);
    check_size("indelible holds values", opt.value_size);
    const auto order = wanted_order();
    auto pool = open_pool(opt);
    if (!are_words(opt))
    {
        auto map = open_strings(pool, opt);
        return new string_tree(std::move(pool.handle), std::move(map), opt.key_size, opt.value_size);
    }
    auto map = open_map(pool, opt, order);
    return new indelible_tree(std::move(pool.handle), std::move(map), word_codec(opt.key_size, order),
                              word_codec(opt.value_size, byte_order::native));
}
catch (const std::exception& error)
{
    fprintf(stderr, "indelible: %s\n", error.what());
    return nullptr;
}
