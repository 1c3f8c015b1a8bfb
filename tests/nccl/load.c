/* Loads the plugin as NCCL does, and makes all versions of its table look alike. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

#include "../sanitized.hpp"
#include "driver.h"

#define MOST_SLOTS 8

/* The calls that have one form in all versions. */
#define TAKE_COMMON(plugin, from)                \
  do {                                           \
    (plugin)->name = (from)->name;               \
    (plugin)->devices = (from)->devices;         \
    (plugin)->accept = (from)->accept;           \
    (plugin)->regMr = (from)->regMr;             \
    (plugin)->regMrDmaBuf = (from)->regMrDmaBuf; \
    (plugin)->deregMr = (from)->deregMr;         \
    (plugin)->iflush = (from)->iflush;           \
    (plugin)->test = (from)->test;               \
    (plugin)->closeSend = (from)->closeSend;     \
    (plugin)->closeRecv = (from)->closeRecv;     \
    (plugin)->closeListen = (from)->closeListen; \
  } while (0)

static const struct nccl_net_v8 *v8(const struct plugin *plugin) { return plugin->table; }
static const struct nccl_net_v9 *v9(const struct plugin *plugin) { return plugin->table; }
static const struct nccl_net_v10 *v10(const struct plugin *plugin) { return plugin->table; }
static const struct nccl_net_v11 *v11(const struct plugin *plugin) { return plugin->table; }
static const struct nccl_net_v12 *v12(const struct plugin *plugin) { return plugin->table; }

static const void *find_table(void *library, int version) {
  char symbol[32];
  snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
  return dlsym(library, symbol);
}

struct plugin load_plugin(const char *path, int version) {
  struct plugin plugin = {0};
  plugin.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(plugin.library != NULL, "dlopen: %s", dlerror());
  plugin.version = version != 0 ? version : 12;
  plugin.table = find_table(plugin.library, plugin.version);
  while (version == 0 && plugin.table == NULL && plugin.version > 8)
    plugin.table = find_table(plugin.library, --plugin.version);
  CHECK(plugin.table != NULL, "the library has no ncclNetPlugin_v%d", plugin.version);
  switch (plugin.version) {
    case 8:
      TAKE_COMMON(&plugin, v8(&plugin));
      break;
    case 9:
      TAKE_COMMON(&plugin, v9(&plugin));
      break;
    case 10:
      TAKE_COMMON(&plugin, v10(&plugin));
      break;
    case 11:
      TAKE_COMMON(&plugin, v11(&plugin));
      break;
    case 12:
      TAKE_COMMON(&plugin, v12(&plugin));
      break;
    default:
      FAIL("this driver knows versions 8 to 12, not %d", plugin.version);
  }
  return plugin;
}

void unload_plugin(struct plugin *plugin) {
  CHECK(dlclose(plugin->library) == 0, "dlclose: %s", dlerror());
  memset(plugin, 0, sizeof(*plugin));
}

nccl_result plugin_init(const struct plugin *plugin, void **context, int traffic_class) {
  struct nccl_comm_config config = {traffic_class};
  *context = NULL;
  switch (plugin->version) {
    case 8:
      return v8(plugin)->init(driver_log);
    case 9:
      return v9(plugin)->init(driver_log);
    case 10:
      return v10(plugin)->init(driver_log, driver_profile);
    case 11:
      return v11(plugin)->init(context, 42, &config, driver_log, driver_profile);
    default:
      return v12(plugin)->init(context, 42, &config, driver_log, driver_profile);
  }
}

nccl_result plugin_finalize(const struct plugin *plugin, void *context) {
  if (plugin->version == 11) return v11(plugin)->finalize(context);
  if (plugin->version == 12) return v12(plugin)->finalize(context);
  return NCCL_OK; /* NCCL has nothing to call there */
}

/* As NCCL fills in what an older version does not say. */
#define TAKE_PROPERTIES(to, from)                     \
  do {                                                \
    (to)->name = (from).name;                         \
    (to)->pciPath = (from).pciPath;                   \
    (to)->guid = (from).guid;                         \
    (to)->ptrSupport = (from).ptrSupport;             \
    (to)->regIsGlobal = (from).regIsGlobal;           \
    (to)->speed = (from).speed;                       \
    (to)->port = (from).port;                         \
    (to)->latency = (from).latency;                   \
    (to)->maxComms = (from).maxComms;                 \
    (to)->maxRecvs = (from).maxRecvs;                 \
    (to)->netDeviceType = (from).netDeviceType;       \
    (to)->netDeviceVersion = (from).netDeviceVersion; \
  } while (0)
#define TAKE_V9_PROPERTIES(to, from)              \
  do {                                            \
    TAKE_PROPERTIES(to, from);                    \
    (to)->forceFlush = (from).forceFlush;         \
    (to)->vProps.ndevs = (from).vProps.ndevs;     \
    (to)->vProps.devs[0] = (from).vProps.devs[0]; \
    (to)->maxP2pBytes = (from).maxP2pBytes;       \
    (to)->maxCollBytes = (from).maxCollBytes;     \
  } while (0)

nccl_result plugin_properties(const struct plugin *plugin, int device, struct nccl_properties_v12 *properties) {
  struct nccl_properties_v8 old8;
  struct nccl_properties_v9 old9;
  struct nccl_properties_v11 old11;
  nccl_result answer = NCCL_OK;
  memset(properties, 0, sizeof(*properties));
  properties->vProps.ndevs = 1;
  properties->vProps.devs[0] = device;
  properties->maxP2pBytes = properties->maxCollBytes = NCCL_MOST_BYTES_V8;
  properties->maxMultiRequestSize = 1;
  properties->railId = properties->planeId = NCCL_UNDEFINED;
  switch (plugin->version) {
    case 8:
      if ((answer = v8(plugin)->getProperties(device, &old8)) == NCCL_OK) TAKE_PROPERTIES(properties, old8);
      return answer;
    case 9:
    case 10:
      answer =
          plugin->version == 9 ? v9(plugin)->getProperties(device, &old9) : v10(plugin)->getProperties(device, &old9);
      if (answer == NCCL_OK) TAKE_V9_PROPERTIES(properties, old9);
      return answer;
    case 11:
      if ((answer = v11(plugin)->getProperties(device, &old11)) == NCCL_OK) {
        TAKE_V9_PROPERTIES(properties, old11);
        properties->maxMultiRequestSize = old11.maxMultiRequestSize;
      }
      return answer;
    default:
      return v12(plugin)->getProperties(device, properties);
  }
}

nccl_result plugin_listen(const struct plugin *plugin, void *context, int device, void *handle, void **comm) {
  switch (plugin->version) {
    case 8:
      return v8(plugin)->listen(device, handle, comm);
    case 9:
      return v9(plugin)->listen(device, handle, comm);
    case 10:
      return v10(plugin)->listen(device, handle, comm);
    case 11:
      return v11(plugin)->listen(context, device, handle, comm);
    default:
      return v12(plugin)->listen(context, device, handle, comm);
  }
}

nccl_result plugin_connect(const struct plugin *plugin, void *context, int device, void *handle, void **comm) {
  struct nccl_comm_config config = {NCCL_UNDEFINED};
  struct nccl_device_handle *offload = NULL;
  switch (plugin->version) {
    case 8:
      return v8(plugin)->connect(device, handle, comm, &offload);
    case 9:
      return v9(plugin)->connect(device, handle, comm, &offload);
    case 10:
      return v10(plugin)->connect(device, &config, handle, comm, &offload);
    case 11:
      return v11(plugin)->connect(context, device, handle, comm, &offload);
    default:
      return v12(plugin)->connect(context, device, handle, comm, &offload);
  }
}

nccl_result plugin_isend(const struct plugin *plugin, void *comm, void *data, size_t bytes, int tag, void *memory,
                         void *parent, void **request) {
  switch (plugin->version) {
    case 8:
      return v8(plugin)->isend(comm, data, (int)bytes, tag, memory, request);
    case 9:
      return v9(plugin)->isend(comm, data, bytes, tag, memory, request);
    case 10:
      return v10(plugin)->isend(comm, data, bytes, tag, memory, parent, request);
    case 11:
      return v11(plugin)->isend(comm, data, bytes, tag, memory, parent, request);
    default:
      return v12(plugin)->isend(comm, data, bytes, tag, memory, parent, request);
  }
}

nccl_result plugin_irecv(const struct plugin *plugin, void *comm, int n, void **data, size_t *sizes, int *tags,
                         void **memories, void **parents, void **request) {
  int narrow[MOST_SLOTS] = {0};
  switch (plugin->version) {
    case 8:
      for (int i = 0; sizes != NULL && i < n && i < MOST_SLOTS; ++i) narrow[i] = (int)sizes[i];
      return v8(plugin)->irecv(comm, n, data, sizes == NULL ? NULL : narrow, tags, memories, request);
    case 9:
      return v9(plugin)->irecv(comm, n, data, sizes, tags, memories, request);
    case 10:
      return v10(plugin)->irecv(comm, n, data, sizes, tags, memories, parents, request);
    case 11:
      return v11(plugin)->irecv(comm, n, data, sizes, tags, memories, parents, request);
    default:
      return v12(plugin)->irecv(comm, n, data, sizes, tags, memories, parents, request);
  }
}

void check_symbol_size(void *library, const char *name, size_t bytes) {
  Dl_info place;
  const ElfW(Sym) *symbol = NULL;
  void *const address = dlsym(library, name);
  CHECK(address != NULL, "the library has no %s", name);
  CHECK(dladdr1(address, &place, (void **)&symbol, RTLD_DL_SYMENT) != 0 && symbol != NULL, "%s is in no library", name);
#ifdef RAILYARD_SANITIZED /* clang counts the bytes that it watches behind an object */
  CHECK(symbol->st_size >= bytes, "%s has %zu bytes, not %zu", name, (size_t)symbol->st_size, bytes);
#else
  CHECK(symbol->st_size == bytes, "%s has %zu bytes, not %zu", name, (size_t)symbol->st_size, bytes);
#endif
}
