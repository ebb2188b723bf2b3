// Loads the shim as PiBench does, by dlopen and dlsym, and calls it through PiBench's interface.
//
// usage: driver LIBRARY DIRECTORY [mistaken]
//
// With `mistaken`, the library was built for another interface than this program; it is to say so and not to crash.

#include "tree_api.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <vector>

#define CHECK(condition)                                                                                              \
    do                                                                                                                \
    {                                                                                                                 \
        if (!(condition))                                                                                             \
        {                                                                                                             \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                   \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (false)

namespace
{

using create_fn = tree_api* (*)(const tree_options_t&);
using tree = std::unique_ptr<tree_api>;

create_fn create;
std::string directory;

// What not every interface has is called only where it is.
template <typename T, typename = void>
constexpr bool has_bulk_load = false;
template <typename T>
constexpr bool has_bulk_load<T, std::void_t<decltype(&T::bulk_load)>> = true;

template <typename T, typename = void>
constexpr bool has_tls_setup = false;
template <typename T>
constexpr bool has_tls_setup<T, std::void_t<decltype(&T::tls_setup)>> = true;

template <typename T, typename = void>
constexpr bool has_data = false;
template <typename T>
constexpr bool has_data<T, std::void_t<decltype(&T::data)>> = true;

template <typename T>
void set_up_thread(T& t)
{
    (void)t;
    if constexpr (has_tls_setup<T>)
        t.tls_setup();
}

template <typename T>
bool bulk_load(T& t, const std::string& data, size_t count, size_t key_size, size_t value_size)
{
    if constexpr (has_bulk_load<T>)
        return t.bulk_load(data.data(), count, key_size, value_size);
    (void)t, (void)data, (void)count, (void)key_size, (void)value_size;
    return false;
}

template <typename T>
void set_data(T& opt)
{
    (void)opt;
    if constexpr (has_data<T>)
        opt.data = &opt; // not ours to look at
}

tree_options_t options(size_t key_size, size_t value_size, const std::string& pool = "")
{
    tree_options_t opt;
    opt.key_size = key_size;
    opt.value_size = value_size;
    opt.pool_path = pool.empty() ? "" : directory + "/" + pool;
    set_data(opt);
    return opt;
}

// What is written to stderr meanwhile.
std::string told(const std::function<void()>& body)
{
    const auto file = directory + "/stderr";
    FILE* const out = fopen(file.c_str(), "w");
    const int before = dup(STDERR_FILENO);
    CHECK(out != nullptr && before >= 0 && dup2(fileno(out), STDERR_FILENO) >= 0);
    body();
    CHECK(dup2(before, STDERR_FILENO) >= 0 && close(before) == 0 && fclose(out) == 0);
    std::ifstream in(file);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    fputs(text.c_str(), stderr);
    CHECK(unlink(file.c_str()) == 0);
    return text;
}

bool contains(const std::string& text, const std::string& part)
{
    return text.find(part) != std::string::npos;
}

bool is_one_line(const std::string& text)
{
    return text.find('\n') == text.size() - 1;
}

// A string of `size` bytes with the number `n`: first byte lowest, or first byte highest.
std::string low_first(uint64_t n, size_t size = 8)
{
    std::string string;
    for (size_t i = 0; i < size; ++i)
        string.push_back(static_cast<char>(n >> (8 * i)));
    return string;
}

std::string high_first(uint64_t n, size_t size = 8)
{
    const auto string = low_first(n, size);
    return std::string(string.rbegin(), string.rend());
}

bool insert(const tree& t, const std::string& key, const std::string& value)
{
    return t->insert(key.data(), key.size(), value.data(), value.size());
}

bool update(const tree& t, const std::string& key, const std::string& value)
{
    return t->update(key.data(), key.size(), value.data(), value.size());
}

bool remove(const tree& t, const std::string& key)
{
    return t->remove(key.data(), key.size());
}

// The value of a key, or nothing. Bytes behind the value must not be written.
std::string find(const tree& t, const std::string& key, size_t value_size = 8)
{
    char value[16];
    memset(value, '#', sizeof(value));
    if (!t->find(key.data(), key.size(), value))
        return "";
    CHECK(std::string(value + value_size, sizeof(value) - value_size) == std::string(16 - value_size, '#'));
    return std::string(value, value_size);
}

// The records of a scan, as one string.
std::string scan(const tree& t, const std::string& key, int size, size_t record_size = 16)
{
    char* values = nullptr;
    const int count = t->scan(key.data(), key.size(), size, values);
    CHECK(count >= 0 && count <= size);
    return count == 0 ? "" : std::string(values, count * record_size);
}

void point_operations()
{
    const tree t(create(options(8, 8)));
    const auto key = low_first(7);
    CHECK(find(t, key).empty());
    CHECK(!update(t, key, "ABSENT!!"));
    CHECK(!remove(t, key));
    CHECK(insert(t, key, "original"));
    CHECK(!insert(t, key, "imposter"));
    CHECK(find(t, key) == "original");
    CHECK(update(t, key, "modified"));
    CHECK(find(t, key) == "modified");
    CHECK(remove(t, key));
    CHECK(find(t, key).empty());
    // A call of other sizes than the tree's is refused.
    CHECK(!insert(t, "four", "original"));
    CHECK(!insert(t, key, "four"));
}

// `spell` writes numbers so that their order is the tree's.
void scans_are_in_order(size_t key_size, size_t value_size,
                        const std::function<std::string(uint64_t, size_t)>& spell)
{
    const tree t(create(options(key_size, value_size)));
    const uint64_t all = key_size == 1 ? 85 : 1000;
    // In a scrambled order: 611 has no factor in common with 85 or 1000. Numbers to 3 * all, so that lower bytes carry.
    for (uint64_t i = 0; i < all; ++i)
    {
        const uint64_t n = i * 611 % all;
        CHECK(insert(t, spell(3 * n, key_size), low_first(n, value_size)));
    }
    const auto records = [&](uint64_t from, uint64_t to) {
        std::string string;
        for (uint64_t n = from; n < to && n < all; ++n)
            string += spell(3 * n, key_size) + low_first(n, value_size);
        return string;
    };
    const size_t record_size = key_size + value_size;
    CHECK(scan(t, spell(0, key_size), 2000, record_size) == records(0, all));
    CHECK(scan(t, spell(60, key_size), 10, record_size) == records(20, 30));
    // A key that is not there: from the next one on.
    CHECK(scan(t, spell(61, key_size), 10, record_size) == records(21, 31));
    CHECK(scan(t, spell(3 * (all - 4), key_size), 10, record_size) == records(all - 4, all));
    CHECK(scan(t, std::string(key_size, '\xff'), 10, record_size).empty());
    CHECK(scan(t, spell(0, key_size), 0, record_size).empty());
    CHECK(find(t, spell(60, key_size), value_size) == low_first(20, value_size));
}

void both_orders_with_all_sizes()
{
    for (size_t key_size = 1; key_size <= 8; ++key_size)
        for (size_t value_size : {1, 4, 8})
        {
            unsetenv("INDELIBLE_PIBENCH_ORDER");
            const bool little = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
            scans_are_in_order(key_size, value_size, little ? low_first : high_first);
            setenv("INDELIBLE_PIBENCH_ORDER", "bytes", 1);
            scans_are_in_order(key_size, value_size, high_first);
        }
    unsetenv("INDELIBLE_PIBENCH_ORDER");
}

// Keys or values of more than 8 bytes, without a prefix and with one that all keys share.
void byte_strings()
{
    for (size_t key_size : {8, 16, 24, 32, 128})
        for (size_t value_size : {8, 9, 100, 1400})
        {
            if (key_size == 8 && value_size == 8)
                continue;
            const tree t(create(options(key_size, value_size)));
            const auto key = [&](uint64_t n) { return std::string(key_size - 8, 'p') + high_first(n); };
            const auto value = [&](uint64_t n) {
                auto string = low_first(n);
                string.resize(value_size, static_cast<char>(n));
                return string;
            };
            const auto found = [&](uint64_t n) {
                std::string room(value_size + 8, '#');
                if (!t->find(key(n).data(), key_size, &room[0]))
                    return std::string();
                CHECK(room.substr(value_size) == "########");
                return room.substr(0, value_size);
            };
            CHECK(found(1).empty() && !update(t, key(1), value(1)) && !remove(t, key(1)));
            for (uint64_t n = 0; n < 1000; ++n)
                CHECK(insert(t, key(n * 611 % 1000 * 3), value(n * 611 % 1000)));
            CHECK(!insert(t, key(3), value(9)) && found(3) == value(1));
            CHECK(update(t, key(3), value(9)) && found(3) == value(9));
            CHECK(update(t, key(3), value(1)) && found(1).empty());
            const size_t record_size = key_size + value_size;
            const auto records = [&](uint64_t from, uint64_t to) {
                std::string string;
                for (uint64_t n = from; n < to; ++n)
                    string += key(3 * n) + value(n);
                return string;
            };
            CHECK(scan(t, key(0), 2000, record_size) == records(0, 1000));
            CHECK(scan(t, key(61), 100, record_size) == records(21, 121));
            CHECK(scan(t, std::string(key_size, '\xff'), 10, record_size).empty());
            CHECK(remove(t, key(60)) && !remove(t, key(60)) && found(60).empty());
            CHECK(scan(t, key(60), 1, record_size) == records(21, 22));
            // A call of other sizes than the tree's is refused.
            CHECK(!insert(t, "four", value(1)) && !insert(t, key(1), "four"));
        }
    const auto opt = options(16, 100, "strings.pool");
    const auto key = high_first(1, 16), value = std::string(100, 'v');
    CHECK(insert(tree(create(opt)), key, value));
    const auto silence = told([&] { CHECK(!insert(tree(create(opt)), key, value)); });
    CHECK(silence.empty());
    const auto empty = told([&] { CHECK(tree(create(options(16, 8, "strings.pool"))) != nullptr); });
    CHECK(is_one_line(empty) && contains(empty, "\"pibench 16+8 strings\""));
    if (has_bulk_load<tree_api>)
    {
        const tree t(create(options(16, 8)));
        std::string data;
        for (uint64_t n = 0; n < 1000; ++n)
            data += high_first(n * 611 % 1000, 16) + low_first(n);
        CHECK(bulk_load(*t, data, 1000, 16, 8));
        CHECK(!bulk_load(*t, data, 1000, 16, 8)); // not empty any more
        CHECK(scan(t, high_first(0, 16), 2000, 24).size() == 24 * 1000);
        // A key that comes twice: nothing is loaded.
        const tree twice(create(options(16, 8)));
        CHECK(!bulk_load(*twice, data + data.substr(0, 24), 1001, 16, 8));
        CHECK(scan(twice, high_first(0, 16), 2000, 24).empty());
        CHECK(bulk_load(*twice, "", 0, 16, 8));
    }
}

// A scan begins with this record, and ascends: as numbers or as bytes.
void check_scan(const tree& t, bool as_bytes, const std::string& key, const std::string& record)
{
    const auto records = scan(t, key, 100);
    CHECK(records.compare(0, record.size(), record) == 0);
    for (size_t at = 16; at < records.size(); at += 16)
    {
        uint64_t before, now;
        memcpy(&before, records.data() + at - 16, sizeof(before));
        memcpy(&now, records.data() + at, sizeof(now));
        CHECK(as_bytes ? memcmp(&before, &now, sizeof(now)) < 0 : before < now);
    }
}

// Each thread has keys of its own, and all fight for one.
void threads_do_not_disturb_each_other(bool as_bytes)
{
    setenv("INDELIBLE_PIBENCH_ORDER", as_bytes ? "bytes" : "native", 1);
    const tree t(create(options(8, 8)));
    constexpr uint64_t THREADS = 4, KEYS = 20000;
    std::vector<std::thread> threads;
    std::vector<int> won(THREADS);
    for (uint64_t id = 0; id < THREADS; ++id)
        threads.emplace_back([&t, &won, as_bytes, id] {
            set_up_thread(*t);
            won[id] = insert(t, low_first(UINT64_MAX), low_first(id));
            for (uint64_t i = 0; i < KEYS; ++i)
            {
                const auto key = low_first(i * THREADS + id);
                CHECK(insert(t, key, low_first(i)));
                CHECK(find(t, key) == low_first(i));
                if (i % 3 == 0)
                    CHECK(remove(t, key));
                else if (i % 3 == 1)
                    CHECK(update(t, key, low_first(~i)));
                if (i % 30 == 1)
                    check_scan(t, as_bytes, key, key + low_first(~i));
            }
        });
    for (auto& thread : threads)
        thread.join();
    CHECK(won[0] + won[1] + won[2] + won[3] == 1);
    for (uint64_t i = 0; i < KEYS; ++i)
        for (uint64_t id = 0; id < THREADS; ++id)
        {
            const auto value = i % 3 == 0 ? "" : low_first(i % 3 == 1 ? ~i : i);
            CHECK(find(t, low_first(i * THREADS + id)) == value);
        }
    unsetenv("INDELIBLE_PIBENCH_ORDER");
}

void pools_stay()
{
    const auto opt = options(8, 8, "stays.pool");
    {
        const tree t(create(opt));
        CHECK(insert(t, low_first(1), "survived"));
        CHECK(create(opt) == nullptr); // open already
    }
    // A process that dies without closing.
    const pid_t child = fork();
    if (child == 0)
    {
        const tree t(create(opt));
        const bool right = find(t, low_first(1)) == "survived" && insert(t, low_first(2), "too!!!!!");
        _exit(right ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    {
        const tree t(create(opt));
        CHECK(find(t, low_first(1)) == "survived");
        CHECK(find(t, low_first(2)) == "too!!!!!");
    }
    // Other sizes and orders do not see what they would misread.
    const tree other(create(options(4, 8, "stays.pool")));
    CHECK(find(other, low_first(1, 4)).empty());
}

void directories_and_durability()
{
    setenv("INDELIBLE_PIBENCH_DURABILITY", "forced", 1);
    CHECK(create(options(8, 8)) == nullptr); // in memory
    for (bool first : {true, false})
    {
        auto opt = options(8, 8);
        opt.pool_path = directory;
        const tree t(create(opt));
        CHECK(insert(t, low_first(1), "survived") == first);
        CHECK(access((directory + "/indelible.pool").c_str(), F_OK) == 0);
    }
    setenv("INDELIBLE_PIBENCH_DURABILITY", "process", 1);
    CHECK(tree(create(options(8, 8, "process.pool"))) != nullptr);
    setenv("INDELIBLE_PIBENCH_DURABILITY", "eternal", 1);
    CHECK(create(options(8, 8, "eternal.pool")) == nullptr);
    unsetenv("INDELIBLE_PIBENCH_DURABILITY");
}

void what_cannot_be_is_refused()
{
    CHECK(create(options((64 << 10) + 1, 8)) == nullptr);
    CHECK(create(options(0, 8)) == nullptr);
    CHECK(create(options(8, (64 << 10) + 1)) == nullptr);
    CHECK(create(options(16, 0)) == nullptr);
    setenv("INDELIBLE_PIBENCH_ORDER", "native", 1); // of byte strings there is one order
    CHECK(create(options(16, 8)) == nullptr);
    unsetenv("INDELIBLE_PIBENCH_ORDER");
    setenv("INDELIBLE_PIBENCH_KIND", "apex", 1); // a kind of maps of words
    CHECK(create(options(16, 8)) == nullptr);
    unsetenv("INDELIBLE_PIBENCH_KIND");
    CHECK(create(options(8, 8, "no/such/directory")) == nullptr);
    setenv("INDELIBLE_PIBENCH_ORDER", "random", 1);
    CHECK(create(options(8, 8)) == nullptr);
    unsetenv("INDELIBLE_PIBENCH_ORDER");
}

// A pool that is full refuses inserts and goes on answering.
void pool_size_is_a_limit()
{
    auto opt = options(8, 8);
    opt.pool_size = 16 << 20;
    const tree t(create(opt));
    uint64_t n = 0;
    while (n < 10000000 && insert(t, low_first(n), low_first(n)))
        ++n;
    CHECK(n > 100000 && n < 10000000);
    CHECK(find(t, low_first(n - 1)) == low_first(n - 1));
    CHECK(find(t, low_first(n)).empty());
}

// Whoever is about to measure lookups without loading records learns that there are none.
void empty_maps_are_told()
{
    const auto opening = [](const tree_options_t& opt) { return told([&] { CHECK(tree(create(opt)) != nullptr); }); };
    const auto memory = opening(options(8, 8));
    CHECK(is_one_line(memory) && contains(memory, " in memory ") && contains(memory, " is empty"));
    const auto opt = options(8, 8, "told.pool");
    const auto created = opening(opt);
    CHECK(is_one_line(created) && contains(created, opt.pool_path) && contains(created, " created"));
    const auto empty = opening(opt);
    CHECK(is_one_line(empty) && contains(empty, opt.pool_path) && contains(empty, "\"pibench 8+8 native\""));
    CHECK(contains(empty, " is empty"));
    CHECK(insert(tree(create(opt)), low_first(1), "survived"));
    CHECK(opening(opt).empty());
    // What has records is another map.
    CHECK(contains(opening(options(4, 8, "told.pool")), "\"pibench 4+8 native\""));
}

// The kinds of index, as the message has them that refuses another one.
std::vector<std::string> kinds()
{
    setenv("INDELIBLE_PIBENCH_KIND", "nonsense", 1);
    const auto message = told([] { CHECK(create(options(8, 8)) == nullptr); });
    unsetenv("INDELIBLE_PIBENCH_KIND");
    const std::string before = "known are ";
    CHECK(is_one_line(message) && contains(message, before));
    std::vector<std::string> kinds;
    auto names = message.substr(message.find(before) + before.size());
    names.pop_back();
    for (size_t at = 0, end = 0; end != std::string::npos; at = end + 2)
    {
        end = names.find(", ", at);
        kinds.push_back(names.substr(at, end - at));
    }
    return kinds;
}

// Records of a kind that was asked for are met by those who ask for it, in either way to say so, and by nobody else.
void kinds_can_be_chosen()
{
    const auto opt = options(8, 8, "kinds.pool");
    uint64_t found = 0;
    for (const auto& kind : kinds())
    {
        setenv("INDELIBLE_PIBENCH_KIND", kind.c_str(), 1);
        CHECK(insert(tree(create(opt)), low_first(1), low_first(++found)));
        setenv("INDELIBLE_PIBENCH_KIND", ("kind=" + kind).c_str(), 1);
        const auto silence = told([&] { CHECK(find(tree(create(opt)), low_first(1)) == low_first(found)); });
        CHECK(silence.empty());
        point_operations();
        both_orders_with_all_sizes();
    }
    CHECK(found >= 2);
    unsetenv("INDELIBLE_PIBENCH_KIND");
    const auto empty = told([&] { CHECK(find(tree(create(opt)), low_first(1)).empty()); });
    CHECK(contains(empty, " is empty"));
}

void bulk_loads()
{
    if (!has_bulk_load<tree_api>)
    {
        printf("no bulk_load in this interface\n");
        return;
    }
    const tree t(create(options(4, 8)));
    std::string data, sorted;
    for (uint64_t n = 0; n < 1000; ++n)
    {
        data += low_first(n * 611 % 1000, 4) + low_first(n);
        sorted += low_first(n, 4);
    }
    CHECK(!bulk_load(*t, data, 1000, 8, 8)); // other sizes than the tree's
    CHECK(bulk_load(*t, data, 1000, 4, 8));
    CHECK(!bulk_load(*t, data, 1000, 4, 8)); // not empty any more
    const auto records = scan(t, low_first(0, 4), 2000, 12);
    CHECK(records.size() == 12 * 1000);
    for (uint64_t n = 0; n < 1000; ++n)
        CHECK(records.compare(12 * n, 4, sorted, 4 * n, 4) == 0);
    const tree twice(create(options(4, 8)));
    CHECK(!bulk_load(*twice, data.substr(0, 12) + data.substr(0, 12), 2, 4, 8));
    CHECK(bulk_load(*twice, "", 0, 4, 8));
}

// A library for another interface: what we call is another function there. It must not crash before it has said so.
void mistaken_libraries_say_so()
{
    const tree t(create(options(8, 8)));
    set_up_thread(*t);
    const auto message = told([&] {
        // The first function is bulk_load or find, ours or theirs.
        if (has_bulk_load<tree_api>)
            CHECK(!bulk_load(*t, std::string(16 * 100, 'x'), 100, 8, 8));
        else
            CHECK(find(t, low_first(1)).empty());
    });
    CHECK(is_one_line(message) && contains(message, "-DPIBENCH_API"));
}

void all_is_well()
{
    point_operations();
    both_orders_with_all_sizes();
    byte_strings();
    threads_do_not_disturb_each_other(false);
    threads_do_not_disturb_each_other(true);
    pools_stay();
    directories_and_durability();
    what_cannot_be_is_refused();
    pool_size_is_a_limit();
    empty_maps_are_told();
    kinds_can_be_chosen();
    bulk_loads();
}

} // namespace

int main(int argc, char** argv)
{
    CHECK(argc == 3 || (argc == 4 && std::string(argv[3]) == "mistaken"));
    // As PiBench's library_loader does.
    void* const library = dlopen(argv[1], RTLD_NOW);
    if (library == nullptr)
    {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    create = reinterpret_cast<create_fn>(dlsym(library, "create_tree"));
    CHECK(create != nullptr);
    CHECK(dlsym(library, "indelible_get") == nullptr); // only create_tree is to be seen
    std::string pattern = std::string(argv[2]) + "/driver-XXXXXX";
    CHECK(mkdtemp(&pattern[0]) != nullptr);
    directory = pattern;

    if (argc == 4)
        mistaken_libraries_say_so();
    else
        all_is_well();

    CHECK(dlclose(library) == 0);
    for (const char* file : {"stays.pool", "indelible.pool", "process.pool", "told.pool", "kinds.pool", "strings.pool"})
        unlink((directory + "/" + file).c_str());
    CHECK(rmdir(directory.c_str()) == 0);
    printf("all is well\n");
    return 0;
}
