// From the byte strings of PiBench to the 64-bit numbers of the index, and back.
#ifndef INDELIBLE_PIBENCH_WORD_CODEC_HPP
#define INDELIBLE_PIBENCH_WORD_CODEC_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

// What the order of the numbers is in terms of the strings.
enum class byte_order
{
    native, // a string is an integer of the machine's byte order, as the published wrappers read it
    bytes,  // strings are compared byte by byte from the first, as memcmp does: integers with the first byte on top
};

// Strings of one size, 1 to 8 bytes. Shorter ones than 8 are extended with zeros on top, so that they keep their order.
class word_codec
{
public:
    word_codec(size_t size, byte_order order)
        : size_(size),
          first_on_top_(order == byte_order::bytes || !little_endian),
          at_(first_on_top_ ? sizeof(uint64_t) - size : 0)
    {
    }

    size_t size() const { return size_; }

    // Whether a string of 8 bytes and its number are the same in memory.
    bool is_identity() const { return size_ == sizeof(uint64_t) && first_on_top_ != little_endian; }

    uint64_t decode(const char* string) const
    {
        uint64_t word = 0;
        if (size_ == sizeof(word)) // a size that the compiler knows is copied by one instruction
            memcpy(&word, string, sizeof(word));
        else
            memcpy(reinterpret_cast<char*>(&word) + at_, string, size_);
        return swapped_if_needed(word);
    }

    void encode(uint64_t word, char* string) const
    {
        word = swapped_if_needed(word);
        if (size_ == sizeof(word))
            memcpy(string, &word, sizeof(word));
        else
            memcpy(string, reinterpret_cast<const char*>(&word) + at_, size_);
    }

private:
    static constexpr bool little_endian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

    uint64_t swapped_if_needed(uint64_t word) const
    {
        return first_on_top_ && little_endian ? __builtin_bswap64(word) : word;
    }

    size_t size_;
    bool first_on_top_; // whether a string's first byte counts most
    size_t at_;         // where a string begins in a word in memory
};

#endif
