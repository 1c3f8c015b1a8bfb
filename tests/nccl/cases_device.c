/* Cases about what the plugin says of itself: devices, tables, log lines, errors, profiler events. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "driver.h"

/* ---- l ----------------------------------------------------------------------------------------------------------- */

static void check_device(const struct nccl_properties_v12 *device, int number) {
  CHECK(device->name != NULL && device->name[0] != 0 && strlen(device->name) < 255, "a name NCCL can hold");
  CHECK(device->speed > 0, "%s has a speed", device->name);
  CHECK(device->ptrSupport == NCCL_POINTER_HOST, "%s takes host memory", device->name);
  CHECK(device->maxRecvs == 8 && device->maxComms >= 1024, "%s has room for comms and groups", device->name);
  CHECK(device->netDeviceType == NCCL_DEVICE_HOST, "%s is driven by the host", device->name);
  CHECK(device->forceFlush == 0, "%s needs no flush", device->name);
  CHECK(device->vProps.ndevs == 1 && device->vProps.devs[0] == number, "%s is no virtual device", device->name);
  CHECK(device->maxP2pBytes > 0 && device->maxP2pBytes <= NCCL_MOST_BYTES, "NCCL takes maxP2pBytes");
  CHECK(device->maxCollBytes > 0 && device->maxCollBytes <= NCCL_MOST_BYTES, "NCCL takes maxCollBytes");
  CHECK(device->maxMultiRequestSize == 1, "one request at a time");
  CHECK(device->railId == NCCL_UNDEFINED && device->planeId == NCCL_UNDEFINED, "no rail or plane of NCCL's");
  struct stat entry;
  if (device->pciPath != NULL) {
    CHECK(strncmp(device->pciPath, "/sys/devices/", 13) == 0, "%s is a resolved path", device->pciPath);
    CHECK(stat(device->pciPath, &entry) == 0, "%s is there", device->pciPath);
  }
}

void case_devices(struct rank *rank) {
  const struct plugin *const plugin = &rank->plugin;
  int count = -1;
  CHECK_OK(plugin_init(plugin, &rank->context, NCCL_UNDEFINED));
  CHECK_OK(plugin->devices(&count));
  CHECK(count >= 1, "there is a device");
  struct nccl_properties_v12 *const all = calloc((size_t)count, sizeof(*all));
  for (int i = 0; i < count; ++i) {
    CHECK_OK(plugin_properties(plugin, i, &all[i]));
    check_device(&all[i], i);
    for (int k = 0; k < i; ++k)
      CHECK(strcmp(all[i].name, all[k].name) != 0 && all[i].guid != all[k].guid, "devices %d and %d are alike", i, k);
  }
  const uint64_t own = all[0].guid;
  uint64_t other = 0;
  send_to_peer(rank, &own, sizeof(own));
  receive_from_peer(rank, &other, sizeof(other));
  CHECK(own == other, "a device is the same to all processes of a machine");
  struct nccl_properties_v12 none;
  CHECK(plugin_properties(plugin, count, &none) == NCCL_INTERNAL_ERROR, "device %d does not exist", count);
  CHECK(plugin_properties(plugin, -1, &none) == NCCL_INTERNAL_ERROR, "device -1 does not exist");
  free(all);
  CHECK_OK(plugin_finalize(plugin, rank->context));
}

/* ---- m ----------------------------------------------------------------------------------------------------------- */

#define CHECK_COMMON(library, number)                                                                                  \
  do {                                                                                                                 \
    const struct nccl_net_v##number *const table = dlsym(library, "ncclNetPlugin_v" #number);                          \
    check_symbol_size(library, "ncclNetPlugin_v" #number, sizeof(*table));                                             \
    CHECK(strcmp(table->name, "Railyard") == 0, "the name of version " #number);                                       \
    CHECK(table->init && table->devices && table->getProperties && table->listen && table->connect && table->accept && \
              table->regMr && table->regMrDmaBuf && table->deregMr && table->isend && table->irecv && table->iflush && \
              table->test && table->closeSend && table->closeRecv && table->closeListen,                               \
          "every call of version " #number);                                                                           \
    CHECK(!table->getDeviceMr && !table->irecvConsumed, "what version " #number " does not offer is null");            \
  } while (0)

void case_tables(struct rank *rank) {
  void *const library = rank->plugin.library;
  CHECK_COMMON(library, 8);
  CHECK_COMMON(library, 9);
  CHECK_COMMON(library, 10);
  CHECK_COMMON(library, 11);
  CHECK_COMMON(library, 12);
  const struct nccl_net_v11 *const eleven = dlsym(library, "ncclNetPlugin_v11");
  const struct nccl_net_v12 *const twelve = dlsym(library, "ncclNetPlugin_v12");
  CHECK(eleven->finalize != NULL && twelve->finalize != NULL, "NCCL calls finalize without looking");
  CHECK(eleven->makeVDevice == NULL && twelve->makeVDevice == NULL, "devices are not fused by NCCL");
  struct plugin newest = load_plugin(rank->library, 0);
  CHECK(newest.version == 12, "the newest version is chosen");
  unload_plugin(&newest);
}

/* ---- log lines --------------------------------------------------------------------------------------------------- */

void case_log(struct rank *rank) {
  void *second = NULL;
  CHECK_OK(plugin_init(&rank->plugin, &rank->context, NCCL_UNDEFINED));
  CHECK(infos() == 3, "init says three lines, not %d", infos());
  CHECK(warnings() == 0, "nothing is wrong: %s", last_warning());
  const char *const rail = getenv("RAILYARD_DRIVER") == NULL ? "lo (tcp" : "(verbs";
  CHECK(strstr(info_line(0), rail) != NULL, "the first line names rails and providers: %s", info_line(0));
  CHECK(strstr(info_line(1), "Peers on this host") != NULL, "the second says how peers are reached: %s", info_line(1));
  CHECK(strstr(info_line(2), "RAILYARD_INTERFACES=") != NULL, "the third has the settings: %s", info_line(2));
  CHECK_OK(plugin_init(&rank->plugin, &second, NCCL_UNDEFINED));
  CHECK(infos() == 3, "the second communicator is told nothing new");
  if (rank->number == 0 && rank->plugin.version == 12) printf("%s\n%s\n%s\n", info_line(0), info_line(1), info_line(2));
  CHECK_OK(plugin_finalize(&rank->plugin, second));
  CHECK_OK(plugin_finalize(&rank->plugin, rank->context));
}

void case_wrong_setting(struct rank *rank) {
  struct {
    const char *name;
    const char *value;
    const char *allowed;
  } const wrong[] = {{"RAILYARD_RAILS", "many", "from 0 to 256"},
                     {"RAILYARD_SHARED_MEMORY", "maybe", "on, off"},
                     {"RAILYARD_INTERFACES", "eth77", "lo"},
                     {"RAILYARD_DRIVER", "carrier-pigeon", "ofi"}};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
    char before[64];
    const char *const old = getenv(wrong[i].name);
    snprintf(before, sizeof(before), "%s", old == NULL ? "" : old);
    setenv(wrong[i].name, wrong[i].value, 1);
    forget_log();
    CHECK(plugin_init(&rank->plugin, &rank->context, NCCL_UNDEFINED) == NCCL_INVALID_USAGE, "%s=%s is refused",
          wrong[i].name, wrong[i].value);
    CHECK(warnings() == 1, "%s: one warning, not %d", wrong[i].name, warnings());
    CHECK(strstr(last_warning(), wrong[i].name) != NULL && strstr(last_warning(), wrong[i].value) != NULL &&
              strstr(last_warning(), wrong[i].allowed) != NULL,
          "the warning says what is wrong and what is allowed: %s", last_warning());
    if (rank->number == 0 && rank->plugin.version == 12) printf("%s\n", last_warning());
    CHECK_OK(plugin_finalize(&rank->plugin, rank->context)); /* as NCCL does after an init that failed */
    if (old == NULL)
      unsetenv(wrong[i].name);
    else
      setenv(wrong[i].name, before, 1);
  }
  forget_log();
  setenv("RAILYARD_RAIL", "2", 1);
  CHECK_OK(plugin_init(&rank->plugin, &rank->context, NCCL_UNDEFINED));
  CHECK(warnings() == 1 && strstr(last_warning(), "RAILYARD_RAILS") != NULL, "a misspelt name is told: %s",
        last_warning());
  CHECK_OK(plugin_finalize(&rank->plugin, rank->context));
}

/* ---- misuse ------------------------------------------------------------------------------------------------------ */

#define REFUSED(call)                                                                                      \
  do {                                                                                                     \
    forget_log();                                                                                          \
    const nccl_result answer_ = (call);                                                                    \
    CHECK(answer_ == NCCL_INTERNAL_ERROR || answer_ == NCCL_INVALID_USAGE || answer_ == NCCL_REMOTE_ERROR, \
          "%s answered %d", #call, answer_);                                                               \
    CHECK(warnings() == 1, "%s warns once, not %d times", #call, warnings());                              \
  } while (0)

static void misuse_comms(void *argument) {
  struct pair *const pair = argument;
  const struct plugin *const plugin = &pair->rank->plugin;
  void *request = (void *)0xbad;
  void *memory = (void *)0xbad;
  void *data[9] = {pair->receive_arena, NULL};
  size_t sizes[9] = {64, 64};
  int tags[9] = {1, 2};
  int done;
  REFUSED(plugin_isend(plugin, pair->receiver, data[0], 64, 1, NULL, NULL, &request));
  CHECK(request == NULL, "a refused isend writes *request");
  REFUSED(plugin_isend(plugin, NULL, data[0], 64, 1, NULL, NULL, &request));
  REFUSED(plugin_isend(plugin, pair->sender, NULL, 64, 1, NULL, NULL, &request));
  REFUSED(plugin_isend(plugin, pair->sender, data[0], 64, 1, NULL, NULL, NULL));
  if (plugin->version == 8) REFUSED(plugin_isend(plugin, pair->sender, data[0], (size_t)-5, 1, NULL, NULL, &request));
  request = NCCL_OPTIONAL_COMPLETION;
  REFUSED(plugin_irecv(plugin, pair->sender, 1, data, sizes, tags, NULL, NULL, &request));
  CHECK(request == NULL, "a refused irecv writes *request");
  REFUSED(plugin_irecv(plugin, pair->receiver, 0, data, sizes, tags, NULL, NULL, &request));
  REFUSED(plugin_irecv(plugin, pair->receiver, 9, data, sizes, tags, NULL, NULL, &request));
  REFUSED(plugin_irecv(plugin, pair->receiver, -1, data, sizes, tags, NULL, NULL, &request));
  REFUSED(plugin_irecv(plugin, pair->receiver, 2, data, sizes, tags, NULL, NULL, &request));
  REFUSED(plugin_irecv(plugin, pair->receiver, 1, NULL, sizes, tags, NULL, NULL, &request));
  REFUSED(plugin_irecv(plugin, pair->receiver, 1, data, NULL, tags, NULL, NULL, &request));
  REFUSED(plugin_irecv(plugin, pair->receiver, 1, data, sizes, NULL, NULL, NULL, &request));
  REFUSED(plugin->test(NULL, &done, NULL));
  REFUSED(plugin->iflush(pair->sender, 1, data, tags, NULL, &request));
  REFUSED(plugin->regMr(NULL, data[0], 64, NCCL_POINTER_HOST, &memory));
  REFUSED(plugin->regMr(pair->sender, NULL, 64, NCCL_POINTER_HOST, &memory));
  REFUSED(plugin->regMr(pair->sender, data[0], 64, NCCL_POINTER_CUDA, &memory));
  CHECK(memory == NULL, "a refused regMr writes its handle");
  REFUSED(plugin->regMr(pair->sender, data[0], 64, NCCL_POINTER_HOST, NULL));
  REFUSED(plugin->regMrDmaBuf(pair->sender, data[0], 64, NCCL_POINTER_CUDA, 0, 3, &memory));
  REFUSED(plugin->deregMr(pair->sender, NULL));
  REFUSED(plugin->deregMr(pair->sender, data[0]));
  REFUSED(plugin->deregMr(pair->receiver, pair->send_memory));
  REFUSED(plugin->closeSend(pair->receiver));
  REFUSED(plugin->closeRecv(NULL));
  REFUSED(plugin->closeListen(pair->sender));
}

static void misuse_connections(void *argument) {
  struct rank *const rank = argument;
  const struct plugin *const plugin = &rank->plugin;
  unsigned char handle[NCCL_HANDLE_BYTES];
  void *comm = (void *)0xbad;
  REFUSED(plugin_listen(plugin, rank->context, 99, handle, &comm));
  CHECK(comm == NULL, "a refused listen writes its comm");
  REFUSED(plugin_listen(plugin, rank->context, 0, NULL, &comm));
  REFUSED(plugin_listen(plugin, rank->context, 0, handle, NULL));
  REFUSED(plugin_connect(plugin, rank->context, 0, NULL, &comm));
  REFUSED(plugin_connect(plugin, rank->context, -1, handle, &comm));
  REFUSED(plugin->accept(NULL, &comm, NULL));
  for (int i = 0; i < 50; ++i) { /* handles that no listener made */
    fill(handle, sizeof(handle), (uint64_t)i + 1000);
    if (i == 0) memset(handle, 0, sizeof(handle));
    REFUSED(plugin_connect(plugin, rank->context, 0, handle, &comm));
    CHECK(comm == NULL, "a refused connect writes its comm");
  }
}

static void misuse_body(struct rank *rank) {
  struct pair pair;
  run_job(&rank->service, misuse_connections, rank);
  open_pair(&pair, rank, 1 << 20);
  run_job(&rank->progress, misuse_comms, &pair);
  const struct stream stream = {.messages = 50, .most_bytes = 4096, .window = 8, .group = 1};
  stream_between(&pair, &stream); /* nothing was broken by it */
  meet(rank);
  close_pair(&pair);
}
void case_misuse(struct rank *rank) { with_communicator(rank, misuse_body); }

/* ---- profiler ---------------------------------------------------------------------------------------------------- */

static void profiler_body(struct rank *rank) {
  struct pair pair;
  open_pair(&pair, rank, 1 << 20);
  const struct stream stream = {.messages = 120, .most_bytes = 4000, .window = 8, .group = 4};
  stream_between(&pair, &stream);
  const struct profile profile = profile_so_far();
  CHECK(profile.wrong == 0, "%d calls of the profiler were wrong", profile.wrong);
  CHECK(profile.started == profile.stopped, "%d events began, %d ended", profile.started, profile.stopped);
  /* Of 240 messages the driver's profiler wants two of three. */
  if (rank->plugin.version >= 10) CHECK(profile.started == 160, "%d events, not 160", profile.started);
  if (rank->plugin.version < 10) CHECK(profile.started == 0, "versions before 10 have no profiler");
  meet(rank);
  close_pair(&pair);
}
void case_profiler(struct rank *rank) { with_communicator(rank, profiler_body); }
