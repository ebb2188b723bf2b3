// What both trees of the shim share: failures, and handles that close themselves.
#ifndef INDELIBLE_PIBENCH_COMMON_HPP
#define INDELIBLE_PIBENCH_COMMON_HPP

#include "indelible.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

// Share of a leaf that a bulk load fills: what the LB+-Tree's authors bulk load with before they measure inserts.
constexpr double BULK_FILL = 0.7;

inline void complain(const char* what)
{
    fprintf(stderr, "indelible: %s: %s\n", what, indelible_last_error());
}

// True for done, false for a key that is there or is not. A failure is false as well, since PiBench knows no third
// answer, and is told on stderr: once, for a full disk fails millions of times.
inline bool done(indelible_status status)
{
    if (status < 0)
    {
        static std::atomic<bool> told{false};
        if (!told.exchange(true))
            complain("an operation failed (further failures are not reported)");
    }
    return status == INDELIBLE_STATUS_OK;
}

// A call with other sizes than the tree's comes from a PiBench that calls the wrong function of ours: told once.
inline bool refuse_sizes()
{
    static std::atomic<bool> told{false};
    if (!told.exchange(true))
        fprintf(stderr, "indelible: refused a call with other sizes than the tree's; this library was probably built for "
                        "another PiBench: build it with the right -DPIBENCH_API (bindings/pibench/README.md)\n");
    return false;
}

struct closer
{
    void operator()(indelible_bytes* map) const
    {
        if (indelible_bytes_close(map) < 0)
            complain("closing the map");
    }

    void operator()(indelible_map* map) const
    {
        if (indelible_map_close(map) < 0)
            complain("closing the map");
    }

    void operator()(indelible_pool* pool) const
    {
        if (indelible_pool_close(pool) < 0)
            complain("closing the pool");
    }
};

using pool_handle = std::unique_ptr<indelible_pool, closer>;
using map_handle = std::unique_ptr<indelible_map, closer>;
using bytes_handle = std::unique_ptr<indelible_bytes, closer>;

// For what has to work before anything is measured.
inline void check(indelible_status status, const std::string& what)
{
    if (status < 0)
        throw std::runtime_error(what + ": " + indelible_last_error());
}

#endif
