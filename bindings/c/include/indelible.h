/*
 * Indelible for C and C++: maps from uint64_t to uint64_t, maps of byte strings, and spatial indexes, that outlive the process.
 *
 * Made by cbindgen from bindings/c/src; the test `header` compares. Do not edit.
 *
 * Link with libindelible_c.a (and -lpthread -ldl -lm) or with libindelible_c.so.
 *
 * Every function that can fail returns a status: zero or above says what happened, below zero that it failed, and
 * indelible_last_error() says why. A null pointer is refused with INDELIBLE_STATUS_INVALID, unless the
 * function says what it means, or it is that of an array or of a byte string whose length is 0: that may be null everywhere.
 * No call unwinds into its caller.
 *
 * All functions may be called by any number of threads at once, with the same handles. The exceptions are those that
 * close a handle, and indelible_bytes_writer_commit is one of them: it must not be in use elsewhere, nor be used again. A cursor
 * and a writer may go from thread to thread, but only one thread at a time uses them.
 *
 * Every handle is given back by a function whose name ends with _close; nothing else is to be freed. Handles may be closed in
 * any order: a cursor, a writer or a reader goes on after its map and its pool have been closed, and keeps both open in the
 * meantime.
 *
 * After fork(), handles are of use in the parent only.
 */

#ifndef INDELIBLE_H
#define INDELIBLE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Durability of a new pool: the process's; of an existing one: as recorded in it.
 */
#define INDELIBLE_DURABILITY_RECORDED 0

/**
 * A change survives the death of the process (kill -9) once its call has returned. The file may lie anywhere.
 */
#define INDELIBLE_DURABILITY_PROCESS 1

/**
 * A change survives power loss too. On a file that is not on persistent memory (DAX) the pool has a log beside it; refused in memory (tmpfs).
 */
#define INDELIBLE_DURABILITY_POWER_LOSS 2

/**
 * Flushes and fences as with power loss, on any file. For measurements: an ordinary file survives no power loss by it.
 */
#define INDELIBLE_DURABILITY_POWER_LOSS_FORCED 3

/**
 * Plus a number of milliseconds, such as INDELIBLE_DURABILITY_INTERVAL + 10: a change survives the death of the process once its call has returned, and a power cut about so
 * much later. A power cut loses nothing in the middle. The pool has a log beside it; refused in memory (tmpfs).
 */
#define INDELIBLE_DURABILITY_INTERVAL 2147483648

/**
 * Points of the plane, or of longitudes and latitudes.
 */
#define INDELIBLE_POINT2 1

/**
 * Points of space.
 */
#define INDELIBLE_POINT3 2

/**
 * Boxes of the plane, or of longitudes and latitudes.
 */
#define INDELIBLE_BOX2 3

/**
 * Boxes of space.
 */
#define INDELIBLE_BOX3 4

/**
 * An object that C cannot open: a map of other keys or values, or what a later version has made.
 */
#define INDELIBLE_OBJECT_OTHER 0

/**
 * A map from uint64_t to uint64_t: see indelible_map_open.
 */
#define INDELIBLE_OBJECT_MAP 1

/**
 * A map of byte strings: see indelible_bytes_open.
 */
#define INDELIBLE_OBJECT_BYTES 2

/**
 * A spatial index: see indelible_spatial_open.
 */
#define INDELIBLE_OBJECT_SPATIAL 3

/**
 * What became of a call. Below zero: it failed.
 *
 * After a failure other than INDELIBLE_STATUS_PANIC a call that changes one record has changed nothing. One that changes
 * many, such as indelible_insert_batch, indelible_remove_range or indelible_pool_shrink, may have done a part; its
 * description says so. After INDELIBLE_STATUS_IO of a pool with a log the change may be there when the pool is opened
 * again.
 */
typedef enum indelible_status {
  /**
   * Done.
   */
  INDELIBLE_STATUS_OK = 0,
  /**
   * The key or the record is not there; nothing was changed.
   */
  INDELIBLE_STATUS_ABSENT = 1,
  /**
   * The key is there already; nothing was changed.
   */
  INDELIBLE_STATUS_PRESENT = 2,
  /**
   * A pointer is null, a name is not UTF-8 or too long, a key or a value is too long, a number is outside its range, or
   * corners make no box.
   */
  INDELIBLE_STATUS_INVALID = -1,
  /**
   * The operating system refused a file operation. A pool whose log could not be written takes no more changes: close
   * it and open it again.
   */
  INDELIBLE_STATUS_IO = -2,
  /**
   * The disk is full, or the pool has reached its size limit, or it holds as many objects as a pool can.
   */
  INDELIBLE_STATUS_NO_SPACE = -3,
  /**
   * The pool is open elsewhere, in this process or in another.
   */
  INDELIBLE_STATUS_LOCKED = -4,
  /**
   * The file cannot be used as wished: not a pool, of a newer format or another machine, open when the machine itself
   * went down (the command `indelible check --salvage POOL` makes a pool usable again if it finds it whole), or in memory
   * (tmpfs) where it is to survive power loss; or the map or the spatial index has another type, another kind or other
   * options.
   */
  INDELIBLE_STATUS_REFUSED = -5,
  /**
   * A checksum or an invariant of the file does not hold.
   */
  INDELIBLE_STATUS_DAMAGED = -6,
  /**
   * Other handles are still open.
   */
  INDELIBLE_STATUS_IN_USE = -7,
  /**
   * A bulk load needs an empty map.
   */
  INDELIBLE_STATUS_NOT_EMPTY = -8,
  /**
   * A bulk load needs strictly ascending keys.
   */
  INDELIBLE_STATUS_NOT_ASCENDING = -9,
  /**
   * Something else; see `indelible_last_error`.
   */
  INDELIBLE_STATUS_OTHER = -10,
  /**
   * A defect of this library. What the call was about to do may be half done in memory; end the process, open the pool
   * again, and please report it.
   */
  INDELIBLE_STATUS_PANIC = -11,
} indelible_status;

/**
 * A range of a map of byte strings, in progress.
 */
typedef struct indelible_bytes_cursor indelible_bytes_cursor;

/**
 * An open map of byte strings.
 */
typedef struct indelible_bytes indelible_bytes;

/**
 * A value that can be read in parts.
 */
typedef struct indelible_bytes_reader indelible_bytes_reader;

/**
 * A value that is being written in parts.
 */
typedef struct indelible_bytes_writer indelible_bytes_writer;

/**
 * An open map.
 */
typedef struct indelible_map indelible_map;

/**
 * An open pool.
 */
typedef struct indelible_pool indelible_pool;

/**
 * An open spatial index.
 */
typedef struct indelible_spatial indelible_spatial;

/**
 * A record: 16 bytes.
 */
typedef struct indelible_record {
  /**
   * Its key. Keys are ordered as unsigned numbers.
   */
  uint64_t key;
  /**
   * Its value.
   */
  uint64_t value;
} indelible_record;

/**
 * A record of a map of byte strings: where its key and its value lie, and how many bytes they have. Of no bytes, they may be null.
 */
typedef struct indelible_bytes_record {
  /**
   * Its key.
   */
  const uint8_t *key;
  /**
   * Bytes of the key.
   */
  size_t key_length;
  /**
   * Its value.
   */
  const uint8_t *value;
  /**
   * Bytes of the value.
   */
  size_t value_length;
} indelible_bytes_record;

/**
 * A box by its corners: 48 bytes. A point is a box whose corners are equal.
 *
 * With longitudes and latitudes, `low[0]` is the western edge, `low[1]` the southern, `high[0]` the eastern, `high[1]` the northern. Of a
 * geometry with two axes the third numbers are not looked at, and written as 0.
 */
typedef struct indelible_box {
  /**
   * The lower corner.
   */
  double low[3];
  /**
   * The upper corner.
   */
  double high[3];
} indelible_box;

/**
 * A record that a search has found: 64 bytes.
 */
typedef struct indelible_spatial_record {
  /**
   * The point or the box.
   */
  struct indelible_box shape;
  /**
   * What is stored beside it.
   */
  uint64_t payload;
  /**
   * Its distance from the point of indelible_spatial_nearest; 0 from other searches.
   */
  double distance;
} indelible_spatial_record;

/**
 * What a pool is: 32 bytes.
 */
typedef struct indelible_stat {
  /**
   * Bytes of the file.
   */
  uint64_t file_bytes;
  /**
   * How many of them no object owns. What indelible_pool_shrink gives back may be more, since it merges nodes.
   */
  uint64_t free_bytes;
  /**
   * How often the pool has been opened.
   */
  uint64_t generation;
  /**
   * INDELIBLE_DURABILITY_PROCESS, _POWER_LOSS, or _INTERVAL plus milliseconds. A pool in memory survives nothing, and says _PROCESS.
   */
  uint32_t durability;
  /**
   * 1 if the pool had been closed before it was opened, or is new; 0 if it was left open by a process that ended.
   */
  uint32_t clean_at_open;
} indelible_stat;

/**
 * An object of a pool: 72 bytes.
 */
typedef struct indelible_object {
  /**
   * Its name, which ends with a zero byte.
   */
  char name[64];
  /**
   * One of INDELIBLE_OBJECT_*.
   */
  uint32_t family;
  /**
   * Of a spatial index, INDELIBLE_POINT2 or another geometry; of other objects 0.
   */
  uint32_t geometry;
} indelible_object;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Why the latest call of this thread that failed did so, in English: a string of UTF-8, empty if none has failed yet.
 *
 * It is never null, and valid until the thread's next call that fails, or its end. Calls made from a destructor that runs at the end
 * of the thread (see pthread_key_create) may leave no message.
 */
const char *indelible_last_error(void);

/**
 * Opens the pool at `path`, and creates it if there is no file.
 *
 * `durability` is one of INDELIBLE_DURABILITY_*; an existing pool has it from then on. `max_bytes` is the most that the file may ever grow to, rounded up to
 * whole extents of 2 MiB; 0 means the most that the format allows, 496 GiB. The file grows as it is needed.
 *
 * The handle is written to `pool` on INDELIBLE_STATUS_OK and to be closed with indelible_pool_close. Opening takes
 * milliseconds, whatever the size and however the pool was left. A pool can be open once at a time.
 *
 * # Safety
 *
 * `path` ends with a zero byte; `pool` can be written.
 */
enum indelible_status indelible_pool_open_or_create(const char *path,
                                                    uint32_t durability,
                                                    uint64_t max_bytes,
                                                    struct indelible_pool **pool);

/**
 * Opens the pool at `path`; otherwise as indelible_pool_open_or_create.
 *
 * # Safety
 *
 * `path` ends with a zero byte; `pool` can be written.
 */
enum indelible_status indelible_pool_open(const char *path,
                                          uint32_t durability,
                                          uint64_t max_bytes,
                                          struct indelible_pool **pool);

/**
 * Creates a pool at `path`, where no file may be; otherwise as indelible_pool_open_or_create.
 *
 * # Safety
 *
 * `path` ends with a zero byte; `pool` can be written.
 */
enum indelible_status indelible_pool_create(const char *path,
                                            uint32_t durability,
                                            uint64_t max_bytes,
                                            struct indelible_pool **pool);

/**
 * A pool in memory, which survives nothing. `max_bytes` and `pool` are as for indelible_pool_open_or_create.
 *
 * # Safety
 *
 * `pool` can be written.
 */
enum indelible_status indelible_pool_in_memory(uint64_t max_bytes, struct indelible_pool **pool);

/**
 * Closes a pool: syncs it to its file and marks it as clean. The handle is gone whatever is returned.
 *
 * INDELIBLE_STATUS_IN_USE: other handles of the pool are still open (maps, spatial indexes, cursors, readers, writers). It is
 * closed when the last of them is, and nobody is told if the sync fails then: so close the pool last. INDELIBLE_STATUS_IO:
 * the sync failed. A process that ends without closing loses nothing that the pool's durability covers.
 *
 * # Safety
 *
 * `pool` came from a function that opens pools, is not in use by another thread, and is not used afterwards.
 */
enum indelible_status indelible_pool_close(struct indelible_pool *pool);

/**
 * Opens the map `name` (1 to 63 bytes of UTF-8) of `pool`, and creates it if it is not there.
 *
 * The handle is written to `map` on INDELIBLE_STATUS_OK and to be closed with indelible_map_close. A map can be opened
 * any number of times. A map that is there is opened whatever its kind and its options are.
 *
 * # Safety
 *
 * `pool` is open; `name` ends with a zero byte; `map` can be written.
 */
enum indelible_status indelible_map_open(const struct indelible_pool *pool,
                                         const char *name,
                                         struct indelible_map **map);

/**
 * As indelible_map_open, but `options` says how a new map is laid out: the name of a kind of index (`lbtree`), or a list
 * of settings that begins with the kind (`kind=lbtree,leaf=512`). Null or an empty string is indelible_map_open.
 *
 * A map that is there with another kind or other options is refused with INDELIBLE_STATUS_REFUSED, and
 * indelible_last_error() then names both. Options that make no sense are refused with INDELIBLE_STATUS_INVALID, and
 * indelible_last_error() names what there is.
 *
 * # Safety
 *
 * `pool` is open; `name` and, unless it is null, `options` end with a zero byte; `map` can be written.
 */
enum indelible_status indelible_map_open_with(const struct indelible_pool *pool,
                                              const char *name,
                                              const char *options,
                                              struct indelible_map **map);

/**
 * Closes a map.
 *
 * # Safety
 *
 * `map` came from indelible_map_open or indelible_map_open_with, is not in use by another thread, and is not used afterwards.
 */
enum indelible_status indelible_map_close(struct indelible_map *map);

/**
 * Writes the value of `key` to `value`, or returns INDELIBLE_STATUS_ABSENT and leaves `value` alone.
 *
 * # Safety
 *
 * `map` is open; `value` can be written.
 */
enum indelible_status indelible_get(const struct indelible_map *map, uint64_t key, uint64_t *value);

/**
 * Sets the value of `key`, whether it is there or not. When the call returns, the change is as durable as the pool
 * promises; so it is with the other calls that change something.
 *
 * # Safety
 *
 * `map` is open.
 */
enum indelible_status indelible_insert(const struct indelible_map *map, uint64_t key, uint64_t value);

/**
 * Adds `key`, or returns INDELIBLE_STATUS_PRESENT and changes nothing if it is there.
 *
 * # Safety
 *
 * `map` is open.
 */
enum indelible_status indelible_insert_new(const struct indelible_map *map, uint64_t key, uint64_t value);

/**
 * Sets the value of `key`, or returns INDELIBLE_STATUS_ABSENT and changes nothing if it is not there.
 *
 * # Safety
 *
 * `map` is open.
 */
enum indelible_status indelible_update(const struct indelible_map *map, uint64_t key, uint64_t value);

/**
 * Removes `key`, or returns INDELIBLE_STATUS_ABSENT if it is not there.
 *
 * # Safety
 *
 * `map` is open.
 */
enum indelible_status indelible_remove(const struct indelible_map *map, uint64_t key);

/**
 * Copies the records with keys from `first` to `last`, both included, to `records`, in ascending order and at most
 * `capacity` of them, and their number to `count`. If `count` is `capacity` there may be more: go on with the last key
 * plus 1, unless the last key is `last`.
 *
 * The copy is no snapshot: a record that comes or goes meanwhile may or may not be in it; one that is there throughout is.
 * On failure nothing is written to `count`; what is in `records` means nothing.
 *
 * # Safety
 *
 * `map` is open; `capacity` records can be written to `records`, and `count`.
 */
enum indelible_status indelible_range(const struct indelible_map *map,
                                      uint64_t first,
                                      uint64_t last,
                                      struct indelible_record *records,
                                      size_t capacity,
                                      size_t *count);

/**
 * As indelible_range, but in descending order: from `last` down, at most `capacity` records. If `count` is `capacity` there may be more: go on
 * with the last key minus 1 as `last`, unless that key is `first`.
 *
 * # Safety
 *
 * As for indelible_range.
 */
enum indelible_status indelible_range_down(const struct indelible_map *map,
                                           uint64_t first,
                                           uint64_t last,
                                           struct indelible_record *records,
                                           size_t capacity,
                                           size_t *count);

/**
 * Looks up `count` keys at once, which is several times as fast as one by one: the lookups wait for memory together. Of the key at `keys[i]` the value is written to
 * `values[i]` and 1 to `found[i]`, or 0 to both if the key is not there. `values` may be `keys`.
 *
 * # Safety
 *
 * `map` is open; `count` keys can be read from `keys`, and as many elements be written from `values` and from `found` on, by this thread alone.
 */
enum indelible_status indelible_get_batch(const struct indelible_map *map,
                                          const uint64_t *keys,
                                          size_t count,
                                          uint64_t *values,
                                          uint8_t *found);

/**
 * Inserts `count` records in any order, which is faster than one by one; of equal keys the last one counts. Each record is there after a crash or not, by itself. If the call fails, some may
 * have been inserted.
 *
 * # Safety
 *
 * `map` is open; `count` records can be read from `records`.
 */
enum indelible_status indelible_insert_batch(const struct indelible_map *map,
                                             const struct indelible_record *records,
                                             size_t count);

/**
 * Removes the records whose keys lie between `from` and `to`, both included, one by one, and writes how many there were to `count`. If the call fails, some may
 * have been removed, and nothing is written to `count`.
 *
 * # Safety
 *
 * `map` is open; `count` can be written.
 */
enum indelible_status indelible_remove_range(const struct indelible_map *map,
                                             uint64_t from,
                                             uint64_t to,
                                             uint64_t *count);

/**
 * Fills an empty map with `count` records in strictly ascending order of their keys, by one thread per core.
 *
 * `fill` is the share of each leaf that is used, from 0.1 to 1; 0.7 leaves room for later inserts. The load commits
 * whole: after a crash the map is empty or complete. Fails with INDELIBLE_STATUS_NOT_EMPTY, _NOT_ASCENDING, _INVALID
 * (`fill`), _NO_SPACE; the map is then as before.
 *
 * # Safety
 *
 * `map` is open; `count` records can be read from `records`.
 */
enum indelible_status indelible_bulk_load(const struct indelible_map *map,
                                          const struct indelible_record *records,
                                          size_t count,
                                          double fill);

/**
 * Writes the number of records to `count`. The first call after a crash waits until all have been counted; the others
 * take no time.
 *
 * # Safety
 *
 * `map` is open; `count` can be written.
 */
enum indelible_status indelible_len(const struct indelible_map *map, uint64_t *count);

/**
 * Opens the map of byte strings `name` (1 to 63 bytes of UTF-8) of `pool`, and creates it if it is not there.
 *
 * `options` says how a new map is laid out (`kind=slotted,leaf=512`); null or an empty string means the defaults, and opens a map that is
 * there whatever its options are. The handle is written to `map` on INDELIBLE_STATUS_OK and to be closed with indelible_bytes_close. A
 * map of numbers of the same name is refused with INDELIBLE_STATUS_REFUSED.
 *
 * # Safety
 *
 * `pool` is open; `name` and, unless it is null, `options` end with a zero byte; `map` can be written.
 */
enum indelible_status indelible_bytes_open(const struct indelible_pool *pool,
                                           const char *name,
                                           const char *options,
                                           struct indelible_bytes **map);

/**
 * Closes a map of byte strings.
 *
 * # Safety
 *
 * `map` came from indelible_bytes_open, is not in use by another thread, and is not used afterwards.
 */
enum indelible_status indelible_bytes_close(struct indelible_bytes *map);

/**
 * Copies the value of the key of `key_length` bytes at `key` to `value`, at most `capacity` bytes of it, and writes the length of the whole
 * value to `value_length`; if this is more than `capacity`, the rest was not copied. Or returns INDELIBLE_STATUS_ABSENT and writes nothing.
 *
 * With `capacity` 0, `value` may be null, and a long value is not read.
 *
 * # Safety
 *
 * `map` is open; `key_length` bytes can be read at `key`; `capacity` bytes can be written to `value`, and `value_length`.
 */
enum indelible_status indelible_bytes_get(const struct indelible_bytes *map,
                                          const uint8_t *key,
                                          size_t key_length,
                                          uint8_t *value,
                                          size_t capacity,
                                          size_t *value_length);

/**
 * Sets the value of a key, whether it is there or not. When the call returns, the change is as durable as the pool promises. Keys have at
 * most 64 KiB, values at most 1 GiB; longer ones are refused with INDELIBLE_STATUS_INVALID.
 *
 * # Safety
 *
 * `map` is open; `key_length` bytes can be read at `key`, and `value_length` at `value`.
 */
enum indelible_status indelible_bytes_insert(const struct indelible_bytes *map,
                                             const uint8_t *key,
                                             size_t key_length,
                                             const uint8_t *value,
                                             size_t value_length);

/**
 * Adds a key, or returns INDELIBLE_STATUS_PRESENT and changes nothing if it is there.
 *
 * # Safety
 *
 * As for indelible_bytes_insert.
 */
enum indelible_status indelible_bytes_insert_new(const struct indelible_bytes *map,
                                                 const uint8_t *key,
                                                 size_t key_length,
                                                 const uint8_t *value,
                                                 size_t value_length);

/**
 * Sets the value of a key, or returns INDELIBLE_STATUS_ABSENT and changes nothing if it is not there.
 *
 * # Safety
 *
 * As for indelible_bytes_insert.
 */
enum indelible_status indelible_bytes_update(const struct indelible_bytes *map,
                                             const uint8_t *key,
                                             size_t key_length,
                                             const uint8_t *value,
                                             size_t value_length);

/**
 * Removes a key, or returns INDELIBLE_STATUS_ABSENT if it is not there.
 *
 * # Safety
 *
 * `map` is open; `key_length` bytes can be read at `key`.
 */
enum indelible_status indelible_bytes_remove(const struct indelible_bytes *map, const uint8_t *key, size_t key_length);

/**
 * Writes the number of records to `count`. The first call after a crash waits until all have been counted; the others take no time.
 *
 * # Safety
 *
 * `map` is open; `count` can be written.
 */
enum indelible_status indelible_bytes_len(const struct indelible_bytes *map,
                                          uint64_t *count);

/**
 * Begins to read the records with keys from `first` on, up to but not including `end`, in the order of keys, which is that of memcmp. If
 * `end` is null, all records from `first` on. The handle is written to `cursor`, and to be closed with indelible_bytes_cursor_close.
 *
 * A cursor is no snapshot: a record that comes or goes meanwhile may or may not be read; one that is there throughout is.
 *
 * # Safety
 *
 * `map` is open; `first_length` bytes can be read at `first` and, unless it is null, `end_length` at `end`; `cursor` can be written.
 */
enum indelible_status indelible_bytes_range(const struct indelible_bytes *map,
                                            const uint8_t *first,
                                            size_t first_length,
                                            const uint8_t *end,
                                            size_t end_length,
                                            struct indelible_bytes_cursor **cursor);

/**
 * As indelible_bytes_range, but for the records whose keys begin with `prefix`.
 *
 * # Safety
 *
 * `map` is open; `prefix_length` bytes can be read at `prefix`; `cursor` can be written.
 */
enum indelible_status indelible_bytes_prefix(const struct indelible_bytes *map,
                                             const uint8_t *prefix,
                                             size_t prefix_length,
                                             struct indelible_bytes_cursor **cursor);

/**
 * Reads the next record, and writes where its key and its value lie and how long they are. They stay there until the next call with this
 * cursor. Or returns INDELIBLE_STATUS_ABSENT and writes nothing if there is no further record. One thread at a time uses a cursor.
 *
 * After a failure the cursor is at its end: further calls return INDELIBLE_STATUS_ABSENT, though there may be more records.
 *
 * # Safety
 *
 * `cursor` is open; the four places can be written.
 */
enum indelible_status indelible_bytes_cursor_next(const struct indelible_bytes_cursor *cursor,
                                                  const uint8_t **key,
                                                  size_t *key_length,
                                                  const uint8_t **value,
                                                  size_t *value_length);

/**
 * As indelible_bytes_cursor_next, but reads from the other end, down from the record with the largest key. The two can be mixed: each record is
 * read once, by the one or by the other, until they meet.
 *
 * # Safety
 *
 * As for indelible_bytes_cursor_next.
 */
enum indelible_status indelible_bytes_cursor_next_back(const struct indelible_bytes_cursor *cursor,
                                                       const uint8_t **key,
                                                       size_t *key_length,
                                                       const uint8_t **value,
                                                       size_t *value_length);

/**
 * Closes a cursor.
 *
 * # Safety
 *
 * `cursor` came from indelible_bytes_range or indelible_bytes_prefix, is not in use by another thread, and is not used afterwards.
 */
enum indelible_status indelible_bytes_cursor_close(struct indelible_bytes_cursor *cursor);

/**
 * Inserts `count` records in any order, which is faster than one by one; of equal keys the last one counts. Each record is there after a crash
 * or not, by itself. If a key or a value is too long, or null though it has bytes, the call fails with INDELIBLE_STATUS_INVALID and nothing
 * is inserted; if it fails for another reason, some may have been inserted.
 *
 * # Safety
 *
 * `map` is open; `count` records can be read from `records`, and the bytes of each key and of each value.
 */
enum indelible_status indelible_bytes_insert_batch(const struct indelible_bytes *map,
                                                   const struct indelible_bytes_record *records,
                                                   size_t count);

/**
 * Fills an empty map with `count` records in strictly ascending order of their keys, which is that of memcmp.
 *
 * `fill` is the share of each leaf that is used, from 0.1 to 1; 0.7 leaves room for later inserts. The load commits whole: after a crash the
 * map is empty or complete. Fails with INDELIBLE_STATUS_NOT_EMPTY, _NOT_ASCENDING, _INVALID (`fill`, or a key or a value as for
 * indelible_bytes_insert_batch), _NO_SPACE; the map is then as before.
 *
 * # Safety
 *
 * As for indelible_bytes_insert_batch.
 */
enum indelible_status indelible_bytes_bulk_load(const struct indelible_bytes *map,
                                                const struct indelible_bytes_record *records,
                                                size_t count,
                                                double fill);

/**
 * Removes the records with keys from `first` on, up to but not including `end`, one by one, and writes how many there were to `count`. If `end` is
 * null, all records from `first` on. If the call fails, some may have been removed, and nothing is written to `count`.
 *
 * # Safety
 *
 * `map` is open; `first_length` bytes can be read at `first` and, unless it is null, `end_length` at `end`; `count` can be written.
 */
enum indelible_status indelible_bytes_remove_range(const struct indelible_bytes *map,
                                                   const uint8_t *first,
                                                   size_t first_length,
                                                   const uint8_t *end,
                                                   size_t end_length,
                                                   uint64_t *count);

/**
 * Begins to write a value of `value_length` bytes for a key in parts, with indelible_bytes_writer_write. Nothing of it is seen before
 * indelible_bytes_writer_commit, which puts the whole value in one step; neither a crash nor indelible_bytes_writer_close leaves
 * anything of a value that was not committed. The handle is written to `writer`.
 *
 * # Safety
 *
 * `map` is open; `key_length` bytes can be read at `key`; `writer` can be written.
 */
enum indelible_status indelible_bytes_writer_open(const struct indelible_bytes *map,
                                                  const uint8_t *key,
                                                  size_t key_length,
                                                  uint64_t value_length,
                                                  struct indelible_bytes_writer **writer);

/**
 * Writes the next `length` bytes of a value. More bytes than the value was begun with are refused with INDELIBLE_STATUS_INVALID, and none of
 * them is taken. After another failure a part of them may have been taken: then begin the value anew. One thread at a time uses a writer.
 *
 * # Safety
 *
 * `writer` is open; `length` bytes can be read at `part`.
 */
enum indelible_status indelible_bytes_writer_write(const struct indelible_bytes_writer *writer,
                                                   const uint8_t *part,
                                                   size_t length);

/**
 * Puts a value that has been written whole, and closes the writer, also after an error. A value of which bytes are missing is refused with
 * INDELIBLE_STATUS_INVALID. When the call returns, the change is as durable as the pool promises.
 *
 * # Safety
 *
 * `writer` came from indelible_bytes_writer_open, is not in use by another thread, and is not used afterwards.
 */
enum indelible_status indelible_bytes_writer_commit(struct indelible_bytes_writer *writer);

/**
 * Closes a writer without putting the value.
 *
 * # Safety
 *
 * `writer` came from indelible_bytes_writer_open, is not in use by another thread, and is not used afterwards.
 */
enum indelible_status indelible_bytes_writer_close(struct indelible_bytes_writer *writer);

/**
 * Opens the value of a key as it is now, and writes its length to `value_length` and a handle to `reader`, which is to be closed with
 * indelible_bytes_reader_close; or returns INDELIBLE_STATUS_ABSENT and writes nothing. The value stays as it is, also if the key is
 * changed meanwhile: the bytes that a long value takes in the pool are not used again before the reader is closed.
 *
 * # Safety
 *
 * `map` is open; `key_length` bytes can be read at `key`; `value_length` and `reader` can be written.
 */
enum indelible_status indelible_bytes_reader_open(const struct indelible_bytes *map,
                                                  const uint8_t *key,
                                                  size_t key_length,
                                                  uint64_t *value_length,
                                                  struct indelible_bytes_reader **reader);

/**
 * Copies the bytes of a value from byte `from` on to `part`, at most `capacity` of them, and writes how many they are to `length`: 0 at the end of the
 * value and behind it. Any number of threads may use a reader.
 *
 * # Safety
 *
 * `reader` is open; `capacity` bytes can be written to `part`, and `length`.
 */
enum indelible_status indelible_bytes_reader_read(const struct indelible_bytes_reader *reader,
                                                  uint64_t from,
                                                  uint8_t *part,
                                                  size_t capacity,
                                                  size_t *length);

/**
 * Closes a reader.
 *
 * # Safety
 *
 * `reader` came from indelible_bytes_reader_open, is not in use by another thread, and is not used afterwards.
 */
enum indelible_status indelible_bytes_reader_close(struct indelible_bytes_reader *reader);

/**
 * Opens the spatial index `name` (1 to 63 bytes of UTF-8) of `pool`, and creates it if it is not there.
 *
 * `geometry` is one of INDELIBLE_POINT2, _POINT3, _BOX2, _BOX3. `options` says how a new index is laid out
 * (`kind=hilbert,coordinates=lonlat`), as for indelible_map_open_with: null or an empty string means the defaults, and
 * opens an index that is there whatever its options are. With `coordinates=lonlat` coordinates are degrees of longitude
 * and latitude, and distances are metres.
 *
 * The handle is written to `index` on INDELIBLE_STATUS_OK and to be closed with indelible_spatial_close. An index of
 * another geometry, with other options than asked for, or a map of this name is refused with INDELIBLE_STATUS_REFUSED.
 *
 * # Safety
 *
 * `pool` is open; `name` and, unless it is null, `options` end with a zero byte; `index` can be written.
 */
enum indelible_status indelible_spatial_open(const struct indelible_pool *pool,
                                             const char *name,
                                             uint32_t geometry,
                                             const char *options,
                                             struct indelible_spatial **index);

/**
 * Closes a spatial index.
 *
 * # Safety
 *
 * `index` came from indelible_spatial_open, is not in use by another thread, and is not used afterwards.
 */
enum indelible_status indelible_spatial_close(struct indelible_spatial *index);

/**
 * Adds a record, also if there is an equal one. INDELIBLE_STATUS_INVALID: a coordinate is NaN or off the globe, a lower
 * edge lies above the upper one, or the corners of a point differ. When the call returns, the change is as durable as the
 * pool promises; so it is with the other calls that change something.
 *
 * # Safety
 *
 * `index` is open; `shape` can be read.
 */
enum indelible_status indelible_spatial_insert(const struct indelible_spatial *index,
                                               const struct indelible_box *shape,
                                               uint64_t payload);

/**
 * Adds `count` records; their distances are not looked at. Takes less time than single inserts if many records lie close
 * together, since those of one leaf are made durable together.
 *
 * If any of the shapes is refused with INDELIBLE_STATUS_INVALID, nothing is added. After another failure, and while the call
 * lasts, any part of the records may be there; when it returns INDELIBLE_STATUS_OK, all are durable.
 *
 * # Safety
 *
 * `index` is open; `count` records can be read from `records`.
 */
enum indelible_status indelible_spatial_insert_batch(const struct indelible_spatial *index,
                                                     const struct indelible_spatial_record *records,
                                                     size_t count);

/**
 * Fills the empty index with `count` records in any order, in one atomic step; their distances are not looked at. `fill`, from 0.1
 * to 1, is the share of each leaf that is used; 0.7 leaves room for inserts. Much faster than inserts.
 *
 * Returns INDELIBLE_STATUS_NOT_EMPTY if the index has records, and INDELIBLE_STATUS_INVALID for shapes that indelible_spatial_insert
 * refuses. After any other failure, or a crash, the index is empty.
 *
 * # Safety
 *
 * `index` is open; `count` records can be read from `records`.
 */
enum indelible_status indelible_spatial_bulk_load(const struct indelible_spatial *index,
                                                  const struct indelible_spatial_record *records,
                                                  size_t count,
                                                  double fill);

/**
 * Removes one record with this shape and this payload, or returns INDELIBLE_STATUS_ABSENT if there is none.
 *
 * # Safety
 *
 * `index` is open; `shape` can be read.
 */
enum indelible_status indelible_spatial_remove(const struct indelible_spatial *index,
                                               const struct indelible_box *shape,
                                               uint64_t payload);

/**
 * Moves one record with this payload from one shape to another, in one atomic step, or returns INDELIBLE_STATUS_ABSENT
 * and changes nothing if there is none.
 *
 * Other threads see the record in one of the two places, never in both; after a crash it is in one of them.
 *
 * # Safety
 *
 * `index` is open; `from` and `to` can be read.
 */
enum indelible_status indelible_spatial_relocate(const struct indelible_spatial *index,
                                                 uint64_t payload,
                                                 const struct indelible_box *from,
                                                 const struct indelible_box *to);

/**
 * Finds the records that have a point in common with `window`, edges included, in no particular order. Copies at most
 * `capacity` of them to `records`, and writes to `count` how many there are: if that is more than `capacity`, ask again
 * with more room. Edges of the window may be infinite. A window of longitudes whose western edge is east of its eastern
 * one crosses the antimeridian.
 *
 * INDELIBLE_STATUS_INVALID: an edge is NaN, a lower edge lies above the upper one (longitudes may), a latitude is off the globe, or a
 * longitude is outside of -360 to 360. On failure nothing is written.
 *
 * # Safety
 *
 * `index` is open; `window` can be read; `capacity` records can be written to `records`, and `count`.
 */
enum indelible_status indelible_spatial_intersecting(const struct indelible_spatial *index,
                                                     const struct indelible_box *window,
                                                     struct indelible_spatial_record *records,
                                                     size_t capacity,
                                                     size_t *count);

/**
 * As indelible_spatial_intersecting, but finds the records that lie in `window` with all of their points.
 *
 * # Safety
 *
 * As for indelible_spatial_intersecting.
 */
enum indelible_status indelible_spatial_contained(const struct indelible_spatial *index,
                                                  const struct indelible_box *window,
                                                  struct indelible_spatial_record *records,
                                                  size_t capacity,
                                                  size_t *count);

/**
 * Copies the records nearest to `point`, a box whose corners are equal, to `records` in the order of their distances, at
 * most `capacity` of them, and their number to `count`. `within` is the greatest distance, INFINITY for any; distances are
 * in the unit of the coordinates, or in metres with `coordinates=lonlat`.
 *
 * INDELIBLE_STATUS_INVALID: a coordinate is NaN or off the globe, the corners of `point` differ, or `within` is NaN or negative. On
 * failure nothing is written.
 *
 * # Safety
 *
 * `index` is open; `point` can be read; `capacity` records can be written to `records`, and `count`.
 */
enum indelible_status indelible_spatial_nearest(const struct indelible_spatial *index,
                                                const struct indelible_box *point,
                                                double within,
                                                struct indelible_spatial_record *records,
                                                size_t capacity,
                                                size_t *count);

/**
 * Writes the number of records to `count`. The first call after a crash waits until all have been counted; the others
 * take no time.
 *
 * # Safety
 *
 * `index` is open; `count` can be written.
 */
enum indelible_status indelible_spatial_len(const struct indelible_spatial *index, uint64_t *count);

/**
 * Waits until everything written so far is on the disk. With INDELIBLE_DURABILITY_INTERVAL, what was written before the call survives a
 * power cut from here on; INDELIBLE_DURABILITY_POWER_LOSS needs no such call; with INDELIBLE_DURABILITY_PROCESS a pool that is open in a
 * power cut is refused all the same, and the next close is shorter.
 *
 * # Safety
 *
 * `pool` is open.
 */
enum indelible_status indelible_pool_sync(const struct indelible_pool *pool);

/**
 * Copies a pool that has a log (INDELIBLE_DURABILITY_POWER_LOSS on a disk, INDELIBLE_DURABILITY_INTERVAL) to a new file at `path` while it goes on being used.
 * The copy has everything that was written before the call, and is as a pool that was closed. INDELIBLE_STATUS_INVALID: the pool has no log.
 *
 * # Safety
 *
 * `pool` is open; `path` ends with a zero byte.
 */
enum indelible_status indelible_pool_backup(const struct indelible_pool *pool,
                                            const char *path);

/**
 * Merges nodes that have few records, moves blocks to the front of the file, and cuts off what is free at its end. Writes the bytes given back to `bytes`.
 * All objects can be used meanwhile. If the call fails, a part of this may have been done, which changes no record, and nothing is written to `bytes`.
 *
 * # Safety
 *
 * `pool` is open; `bytes` can be written.
 */
enum indelible_status indelible_pool_shrink(const struct indelible_pool *pool,
                                            uint64_t *bytes);

/**
 * Checks what the pool knows of itself, apart from its objects. INDELIBLE_STATUS_DAMAGED: something is wrong, and indelible_last_error() says what.
 *
 * # Safety
 *
 * `pool` is open.
 */
enum indelible_status indelible_pool_check(const struct indelible_pool *pool);

/**
 * Checks every record of a map, and how its index is built. INDELIBLE_STATUS_DAMAGED: something is wrong, and indelible_last_error() says what.
 * Call it while nobody writes: a change that is being made can look like damage.
 *
 * # Safety
 *
 * `map` is open.
 */
enum indelible_status indelible_map_check(const struct indelible_map *map);

/**
 * As indelible_map_check, of a map of byte strings.
 *
 * # Safety
 *
 * `map` is open.
 */
enum indelible_status indelible_bytes_check(const struct indelible_bytes *map);

/**
 * As indelible_map_check, of a spatial index.
 *
 * # Safety
 *
 * `index` is open.
 */
enum indelible_status indelible_spatial_check(const struct indelible_spatial *index);

/**
 * Whether the pool has an object of this name, of whatever family: INDELIBLE_STATUS_OK or INDELIBLE_STATUS_ABSENT.
 *
 * # Safety
 *
 * `pool` is open; `name` ends with a zero byte.
 */
enum indelible_status indelible_object_find(const struct indelible_pool *pool, const char *name);

/**
 * Gives the object `from`, a map or a spatial index, the name `to`. Open handles stay valid. After a crash it has one name or the other.
 * INDELIBLE_STATUS_ABSENT: there is no object `from`. INDELIBLE_STATUS_PRESENT: there is an object `to`. Nothing is changed then.
 *
 * # Safety
 *
 * `pool` is open; `from` and `to` end with a zero byte.
 */
enum indelible_status indelible_object_rename(const struct indelible_pool *pool,
                                              const char *from,
                                              const char *to);

/**
 * Removes the object `name`, a map or a spatial index, whatever is in it, and frees its space. After a crash it is there whole or not at all.
 * INDELIBLE_STATUS_ABSENT: there is none. INDELIBLE_STATUS_IN_USE: a handle to it is open, which may be a cursor, a reader or a writer.
 *
 * # Safety
 *
 * `pool` is open; `name` ends with a zero byte.
 */
enum indelible_status indelible_object_drop(const struct indelible_pool *pool,
                                            const char *name);

/**
 * Writes what the pool is to `stat`.
 *
 * # Safety
 *
 * `pool` is open; `stat` can be written.
 */
enum indelible_status indelible_pool_stat(const struct indelible_pool *pool, struct indelible_stat *stat);

/**
 * Finds the object whose name comes next after `after` in the order of strcmp, and writes what it is to `object`; with null, the first one. Or
 * returns INDELIBLE_STATUS_ABSENT and writes nothing if there is none. So all objects are found by
 * `while (indelible_object_next(pool, name, &object) == INDELIBLE_STATUS_OK) name = object.name;` from a null `name` on.
 *
 * `after` may be the name in `object`. Objects that come or go meanwhile may or may not be found. An object whose name has a zero byte in it,
 * which no name from C has, is left out.
 *
 * # Safety
 *
 * `pool` is open; `after` is null or ends with a zero byte; `object` can be written.
 */
enum indelible_status indelible_object_next(const struct indelible_pool *pool,
                                            const char *after,
                                            struct indelible_object *object);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* INDELIBLE_H */
