/* An NVIDIA driver library (NVML) whose answers come from a script. So every answer of a driver is tested without a card.
 *
 * The script lies beside the library, as `<library>.script`; each test has its own copy of both. Its lines, numbers in decimal:
 *
 *     init <code>             what nvmlInit returns (0 is success; the codes are NVML's nvmlReturn_t)
 *     count_error <code>      what nvmlDeviceGetCount returns
 *     driver <version>
 *     gpu <name>              starts a card; the lines below describe it
 *     uuid <text>
 *     pci <bus id>            as text, unaltered
 *     memory <total> <free> <reserved>
 *     handle_error <code>     what getting the card's handle returns
 *     name_error <code>
 *     pci_error <code>
 *     memory_error <code>     what the second memory query returns
 *     memory_clock <MHz>      its maximum
 *     bus_width <bits>
 *     pcie <generation> <lanes> <generation now> <lanes now>
 *     compute <pid> <bytes>   a process with a compute context; bytes are -1 where the driver does not count them
 *     graphics <pid> <bytes>  a process with a graphics context
 *     temperature <degrees Celsius>
 *     throttle <reasons>      what holds its clocks down, as nvmlClocksThrottleReasons bits
 *     mig                     is in MIG mode
 *     slice <place> <total> <free> <uuid> <name>    a MIG slice at one of 7 places
 *     process <pid> <path>    what a process is called; of no card
 *
 * What a card's lines do not say it does not support, as a card or driver may.
 *
 * Every init and shutdown is a line in `<library>.log`.
 * NVML_NO_MEMORY_V2 and NVML_NO_PROCESSES leave out the second memory query and the third process query (drivers before 510),
 * NVML_NO_INIT and NVML_NO_SHUTDOWN those symbols.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, VERSION_MISMATCH = 25 };
enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { MAX_CARDS = 16, MAX_PROCESSES = 16, MAX_SLICES = 7 };

/* nvml.h: nvmlProcessInfo_t of the third query */
struct process { unsigned int pid; unsigned long long bytes; unsigned int gpu_instance, compute_instance; };
struct processes { struct process list[MAX_PROCESSES]; unsigned int count; };
struct process_name { unsigned int pid; char path[256]; };

struct card {
    char name[96], uuid[96], pci[32];
    unsigned long long total, free, reserved;
    int handle_error, name_error, pci_error, memory_error;
    unsigned int memory_clock, bus_width, pcie[4];
    struct processes compute, graphics;
    unsigned int temperature;
    long long throttle; /* below 0: not supported */
    int mig;
    struct card *slices[MAX_SLICES];
};

/* nvml.h: nvmlPciInfo_t, nvmlMemory_t, nvmlMemory_v2_t */
struct pci_info {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};
struct memory_v2 { unsigned int version; unsigned long long total, reserved, free, used; };

static struct card cards[MAX_CARDS], slices[MAX_SLICES];
static struct process_name names[MAX_PROCESSES];
static unsigned int card_count, slice_count, name_count;
static int init_code, count_code, users;
static char driver[96] = "550.54.14";

static void beside(char *path, size_t size, const char *suffix) {
    Dl_info info;
    path[0] = 0;
    if (dladdr((void *)beside, &info)) {
        snprintf(path, size, "%s%s", info.dli_fname, suffix);
    }
}

static void note(const char *line) {
    char path[4096];
    beside(path, sizeof path, ".log");
    FILE *file = fopen(path, "a");
    if (file) {
        fprintf(file, "%s\n", line);
        fclose(file);
    }
}

static void add_process(struct processes *processes, const char *line) {
    struct process *process = &processes->list[processes->count];
    long long bytes;
    if (processes->count < MAX_PROCESSES && sscanf(line, "%u %lld", &process->pid, &bytes) == 2) {
        process->bytes = (unsigned long long)bytes;
        process->gpu_instance = process->compute_instance = 0xffffffffu;
        processes->count++;
    }
}

static void add_slice(struct card *card, const char *line) {
    unsigned int place;
    struct card *slice = &slices[slice_count];
    memset(slice, 0, sizeof *slice);
    if (slice_count < MAX_SLICES
        && sscanf(line, "%u %llu %llu %95s %95[^\n]", &place, &slice->total, &slice->free, slice->uuid, slice->name) == 5
        && place < MAX_SLICES) {
        card->slices[place] = slice;
        slice_count++;
    }
}

static void read_script(void) {
    char path[4096], line[512];
    card_count = slice_count = name_count = 0;
    init_code = count_code = SUCCESS;
    beside(path, sizeof path, ".script");
    FILE *file = fopen(path, "r");
    if (!file) {
        return;
    }
    while (fgets(line, sizeof line, file)) {
        char *text = line + strspn(line, " ");
        text[strcspn(text, "\n")] = 0;
        size_t word = strcspn(text, " ");
        const char *rest = text[word] ? text + word + 1 : text + word;
        text[word] = 0;
        struct card *card = card_count ? &cards[card_count - 1] : NULL;
        if (!strcmp(text, "init")) init_code = atoi(rest);
        else if (!strcmp(text, "count_error")) count_code = atoi(rest);
        else if (!strcmp(text, "driver")) snprintf(driver, sizeof driver, "%s", rest);
        else if (!strcmp(text, "gpu") && card_count < MAX_CARDS) {
            memset(&cards[card_count], 0, sizeof cards[card_count]);
            cards[card_count].throttle = -1;
            snprintf(cards[card_count++].name, sizeof cards[0].name, "%s", rest);
        }
        else if (!strcmp(text, "process") && name_count < MAX_PROCESSES) {
            sscanf(rest, "%u %255[^\n]", &names[name_count].pid, names[name_count].path);
            name_count++;
        }
        else if (!card) continue;
        else if (!strcmp(text, "uuid")) snprintf(card->uuid, sizeof card->uuid, "%s", rest);
        else if (!strcmp(text, "pci")) snprintf(card->pci, sizeof card->pci, "%s", rest);
        else if (!strcmp(text, "memory")) sscanf(rest, "%llu %llu %llu", &card->total, &card->free, &card->reserved);
        else if (!strcmp(text, "handle_error")) card->handle_error = atoi(rest);
        else if (!strcmp(text, "name_error")) card->name_error = atoi(rest);
        else if (!strcmp(text, "pci_error")) card->pci_error = atoi(rest);
        else if (!strcmp(text, "memory_error")) card->memory_error = atoi(rest);
        else if (!strcmp(text, "memory_clock")) card->memory_clock = atoi(rest);
        else if (!strcmp(text, "bus_width")) card->bus_width = atoi(rest);
        else if (!strcmp(text, "pcie")) sscanf(rest, "%u %u %u %u", &card->pcie[0], &card->pcie[1], &card->pcie[2], &card->pcie[3]);
        else if (!strcmp(text, "compute")) add_process(&card->compute, rest);
        else if (!strcmp(text, "graphics")) add_process(&card->graphics, rest);
        else if (!strcmp(text, "temperature")) card->temperature = (unsigned int)atoi(rest);
        else if (!strcmp(text, "throttle")) card->throttle = atoll(rest);
        else if (!strcmp(text, "mig")) card->mig = 1;
        else if (!strcmp(text, "slice")) add_slice(card, rest);
    }
    fclose(file);
}

#ifndef NVML_NO_INIT
int nvmlInit_v2(void) {
    read_script();
    if (init_code != SUCCESS) {
        return init_code;
    }
    users++;
    note("init");
    return SUCCESS;
}
#endif

#ifndef NVML_NO_SHUTDOWN
int nvmlShutdown(void) {
    if (users == 0) {
        return UNINITIALIZED;
    }
    users--;
    note("shutdown");
    return SUCCESS;
}
#endif

static int copy(char *into, unsigned int size, const char *text) {
    return snprintf(into, size, "%s", text) < (int)size ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlSystemGetDriverVersion(char *version, unsigned int size) {
    return users ? copy(version, size, driver) : UNINITIALIZED;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    if (users == 0) return UNINITIALIZED;
    *count = card_count;
    return count_code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct card **card) {
    if (users == 0) return UNINITIALIZED;
    if (index >= card_count) return INVALID_ARGUMENT;
    *card = &cards[index];
    return cards[index].handle_error;
}

int nvmlDeviceGetName(struct card *card, char *name, unsigned int size) {
    return card->name_error ? card->name_error : copy(name, size, card->name);
}

int nvmlDeviceGetUUID(struct card *card, char *uuid, unsigned int size) {
    return copy(uuid, size, card->uuid);
}

int nvmlDeviceGetPciInfo_v3(struct card *card, struct pci_info *info) {
    if (card->pci_error) return card->pci_error;
    memset(info, 0, sizeof *info);
    return copy(info->bus_id, sizeof info->bus_id, card->pci);
}

#ifndef NVML_NO_MEMORY_V2
int nvmlDeviceGetMemoryInfo_v2(struct card *card, struct memory_v2 *memory) {
    if (card->memory_error) return card->memory_error;
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    memory->total = card->total;
    memory->reserved = card->reserved;
    memory->free = card->free;
    memory->used = card->total - card->free - card->reserved;
    return SUCCESS;
}
#endif

static int give(unsigned int *into, unsigned int value) {
    *into = value;
    return value ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxClockInfo(struct card *card, int clock, unsigned int *mhz) {
    return clock == 2 /* NVML_CLOCK_MEM */ ? give(mhz, card->memory_clock) : INVALID_ARGUMENT;
}

int nvmlDeviceGetMemoryBusWidth(struct card *card, unsigned int *bits) { return give(bits, card->bus_width); }
int nvmlDeviceGetMaxPcieLinkGeneration(struct card *card, unsigned int *value) { return give(value, card->pcie[0]); }
int nvmlDeviceGetMaxPcieLinkWidth(struct card *card, unsigned int *value) { return give(value, card->pcie[1]); }
int nvmlDeviceGetCurrPcieLinkGeneration(struct card *card, unsigned int *value) { return give(value, card->pcie[2]); }
int nvmlDeviceGetCurrPcieLinkWidth(struct card *card, unsigned int *value) { return give(value, card->pcie[3]); }

int nvmlDeviceGetTemperature(struct card *card, int sensor, unsigned int *value) {
    return sensor == 0 /* NVML_TEMPERATURE_GPU */ ? give(value, card->temperature) : INVALID_ARGUMENT;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct card *card, unsigned long long *reasons) {
    if (card->throttle < 0) return NOT_SUPPORTED;
    *reasons = (unsigned long long)card->throttle;
    return SUCCESS;
}

static int list(const struct processes *processes, unsigned int *room, struct process *into) {
    unsigned int fits = *room;
    *room = processes->count;
    if (processes->count > fits) return INSUFFICIENT_SIZE;
    memcpy(into, processes->list, processes->count * sizeof *into);
    return SUCCESS;
}

#ifndef NVML_NO_PROCESSES
int nvmlDeviceGetComputeRunningProcesses_v3(struct card *card, unsigned int *count, struct process *into) {
    return list(&card->compute, count, into);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct card *card, unsigned int *count, struct process *into) {
    return list(&card->graphics, count, into);
}
#endif

int nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int size) {
    for (unsigned int i = 0; i < name_count; i++) {
        if (names[i].pid == pid) return copy(name, size, names[i].path);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetMigMode(struct card *card, unsigned int *now, unsigned int *after_reset) {
    *now = *after_reset = card->mig;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(struct card *card, unsigned int *count) {
    *count = card->mig ? MAX_SLICES : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct card *card, unsigned int place, struct card **slice) {
    if (place >= MAX_SLICES || !card->slices[place]) return NOT_FOUND;
    *slice = card->slices[place];
    return SUCCESS;
}
