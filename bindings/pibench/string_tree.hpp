// PiBench's `tree_api` over a map of byte strings: keys or values of more than 8 bytes.
#ifndef INDELIBLE_PIBENCH_STRING_TREE_HPP
#define INDELIBLE_PIBENCH_STRING_TREE_HPP

#include "common.hpp"
#include "tree_api.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

// Keys are compared as memcmp compares them. All keys of a tree have one size, and so have its values.
class string_tree final : public tree_api
{
public:
    string_tree(pool_handle pool, bytes_handle map, size_t key_size, size_t value_size)
        : pool_(std::move(pool)), map_(std::move(map)), key_size_(key_size), value_size_(value_size)
    {
    }

    // Neither `virtual` nor `override`, as in indelible_tree.
    bool bulk_load(const char* data, size_t num_records, size_t key_sz, size_t value_sz)
    {
        if (!fits(key_sz, value_sz))
            return false;
        std::vector<indelible_bytes_record> records(num_records);
        for (auto& record : records)
        {
            record = {bytes(data), key_sz, bytes(data + key_sz), value_sz};
            data += key_sz + value_sz;
        }
        std::sort(records.begin(), records.end(),
                  [key_sz](auto& a, auto& b) { return memcmp(a.key, b.key, key_sz) < 0; });
        return done(indelible_bytes_bulk_load(map_.get(), records.data(), records.size(), BULK_FILL));
    }

    bool find(const char* key, size_t sz, char* value_out) override
    {
        size_t length = 0;
        return fits(sz) && done(indelible_bytes_get(map_.get(), bytes(key), sz, reinterpret_cast<uint8_t*>(value_out),
                                                    value_size_, &length));
    }

    bool insert(const char* key, size_t key_sz, const char* value, size_t value_sz) override
    {
        return fits(key_sz, value_sz) &&
               done(indelible_bytes_insert_new(map_.get(), bytes(key), key_sz, bytes(value), value_sz));
    }

    bool update(const char* key, size_t key_sz, const char* value, size_t value_sz) override
    {
        return fits(key_sz, value_sz) &&
               done(indelible_bytes_update(map_.get(), bytes(key), key_sz, bytes(value), value_sz));
    }

    bool remove(const char* key, size_t key_sz) override
    {
        return fits(key_sz) && done(indelible_bytes_remove(map_.get(), bytes(key), key_sz));
    }

    int scan(const char* key, size_t key_sz, int scan_sz, char*& values_out) override
    {
        static thread_local std::vector<char> records;
        if (scan_sz <= 0 || !fits(key_sz))
            return 0;
        // Only ever grows: clearing it would be work that is no part of a scan.
        const size_t record_sz = key_size_ + value_size_;
        if (records.size() < scan_sz * record_sz)
            records.resize(scan_sz * record_sz);
        indelible_bytes_cursor* cursor = nullptr;
        if (!done(indelible_bytes_range(map_.get(), bytes(key), key_sz, nullptr, 0, &cursor)))
            return 0;
        int count = 0;
        while (count < scan_sz && read(cursor, records.data() + count * record_sz))
            ++count;
        indelible_bytes_cursor_close(cursor);
        values_out = records.data();
        return count;
    }

    // As in indelible_tree.
    virtual void tls_setup() {}
    virtual void unused() {}

private:
    static const uint8_t* bytes(const char* string) { return reinterpret_cast<const uint8_t*>(string); }

    bool fits(size_t key_sz) const { return key_sz == key_size_ || refuse_sizes(); }
    bool fits(size_t key_sz, size_t value_sz) const
    {
        return (key_sz == key_size_ && value_sz == value_size_) || refuse_sizes();
    }

    // Copies the next record, key before value; false at the end.
    bool read(indelible_bytes_cursor* cursor, char* record) const
    {
        const uint8_t *key, *value;
        size_t key_sz, value_sz;
        const auto status = indelible_bytes_cursor_next(cursor, &key, &key_sz, &value, &value_sz);
        if (status != INDELIBLE_STATUS_OK)
            return status < 0 && done(status);
        if (key_sz != key_size_ || value_sz != value_size_)
            return refuse_sizes();
        memcpy(record, key, key_sz);
        memcpy(record + key_sz, value, value_sz);
        return true;
    }

    pool_handle pool_; // closed after the map
    bytes_handle map_;
    const size_t key_size_;
    const size_t value_size_;
};

#endif
