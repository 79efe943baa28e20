// RocksDB's HyperClockCache for src/hyperclock.rs, as C functions that let no exception out.
//
// Only the calls of RocksDB's public header rocksdb/cache.h that a block cache makes.

#include <rocksdb/cache.h>
#include <rocksdb/version.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>

#if ROCKSDB_MAJOR < 7 || (ROCKSDB_MAJOR == 7 && ROCKSDB_MINOR < 7)
#error "RocksDB 7.7 or later is needed: it is the first with HyperClockCacheOptions"
#endif
#if ROCKSDB_MAJOR >= 8
#error "RocksDB 7 is needed: from 8.0 on, values are inserted with a CacheItemHelper"
#endif

namespace {

using rocksdb::Cache;
using rocksdb::Slice;

// What the Rust side has a pointer to.
struct Clock {
  std::shared_ptr<Cache> cache;
};

// The only kind of key that the cache takes: 16 bytes.
struct Key {
  uint64_t words[2];
  explicit Key(uint64_t key) : words{key, 0} {}
  Slice slice() const { return Slice(reinterpret_cast<const char*>(words), sizeof words); }
};

void free_value(const Slice&, void* value) { delete[] static_cast<uint8_t*>(value); }

}  // namespace

extern "C" {

// Null: no memory.
Clock* pinfold_hyperclock_new(size_t capacity_bytes, size_t value_bytes) try {
  rocksdb::HyperClockCacheOptions options(capacity_bytes, value_bytes);
  std::shared_ptr<Cache> cache = options.MakeSharedCache();
  return cache ? new Clock{std::move(cache)} : nullptr;
} catch (const std::exception&) {
  return nullptr;
}

void pinfold_hyperclock_free(Clock* clock) { delete clock; }

// False: no memory, or the cache refused it.
bool pinfold_hyperclock_insert(Clock* clock, uint64_t key, const uint8_t* value, size_t bytes) try {
  std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes]);
  std::memcpy(copy.get(), value, bytes);
  // From here on the cache frees it, also where it refuses it.
  return clock->cache->Insert(Key(key).slice(), copy.release(), bytes, free_value).ok();
} catch (const std::exception&) {
  return false;
}

// Null: not there. Else a handle to be released, and the address of the value.
Cache::Handle* pinfold_hyperclock_lookup(Clock* clock, uint64_t key, const uint8_t** value) {
  Cache::Handle* handle = clock->cache->Lookup(Key(key).slice());
  if (handle) *value = static_cast<const uint8_t*>(clock->cache->Value(handle));
  return handle;
}

void pinfold_hyperclock_release(Clock* clock, Cache::Handle* handle) {
  clock->cache->Release(handle);
}

}  // extern "C"
