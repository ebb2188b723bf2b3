// The R-tree of Boost.Geometry behind functions of C, for boost.rs. Nothing throws across the border: where memory runs out, the process ends.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include <boost/geometry.hpp>
#include <boost/geometry/index/rtree.hpp>
#include <boost/version.hpp>

namespace bg = boost::geometry;
namespace bgi = boost::geometry::index;

namespace {

using Point = bg::model::point<double, 2, bg::cs::cartesian>;
using Box = bg::model::box<Point>;
using Value = std::pair<Point, std::uint64_t>;
using Tree = bgi::rtree<Value, bgi::rstar<16>>;

// As in boost.rs.
struct Record {
    double x;
    double y;
    std::uint64_t value;
};

using Take = void (*)(void *page, std::uint64_t value);

// Hands each value that is found over.
class Found {
public:
    using iterator_category = std::output_iterator_tag;
    using value_type = void;
    using difference_type = void;
    using pointer = void;
    using reference = void;

    Found(Take take, void *page) : take(take), page(page) {}
    Found &operator*() { return *this; }
    Found &operator++() { return *this; }
    Found &operator++(int) { return *this; }
    Found &operator=(Value const &found) {
        take(page, found.second);
        return *this;
    }

private:
    Take take;
    void *page;
};

Value value_of(Record const &record) {
    return {Point(record.x, record.y), record.value};
}

} // namespace

extern "C" {

char const *indelible_boost_version() noexcept { return BOOST_LIB_VERSION; }

Tree *indelible_boost_new() noexcept { return new Tree; }

// Packed: the tree is built at once, from the top.
Tree *indelible_boost_pack(Record const *records, std::size_t count) noexcept {
    std::vector<Value> values;
    values.reserve(count);
    std::transform(records, records + count, std::back_inserter(values), value_of);
    return new Tree(values.begin(), values.end());
}

void indelible_boost_free(Tree *tree) noexcept { delete tree; }

void indelible_boost_insert(Tree *tree, Record record) noexcept {
    tree->insert(value_of(record));
}

bool indelible_boost_remove(Tree *tree, Record record) noexcept {
    return tree->remove(value_of(record)) > 0;
}

void indelible_boost_window(Tree const *tree, double west, double south, double east, double north, Take take,
                            void *page) noexcept {
    Box const window(Point(west, south), Point(east, north));
    tree->query(bgi::intersects(window), Found(take, page));
}

// The query returns the nearest in no order.
void indelible_boost_nearest(Tree const *tree, double x, double y, std::size_t count, Take take, void *page) noexcept {
    Point const from(x, y);
    std::vector<Value> found;
    tree->query(bgi::nearest(from, static_cast<unsigned>(count)), std::back_inserter(found));
    std::vector<std::pair<double, std::uint64_t>> order;
    order.reserve(found.size());
    for (Value const &one : found) {
        order.emplace_back(bg::comparable_distance(from, one.first), one.second);
    }
    std::sort(order.begin(), order.end());
    for (auto const &one : order) {
        take(page, one.second);
    }
}

} // extern "C"
