/* An NVIDIA driver library (NVML) that says what a script tells it to, so that every answer of a driver is tested without a card.
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
 *     v2_error <code>         what the second memory query returns
 *     v1_error <code>         what the first memory query returns
 *
 * Every init and shutdown is a line in `<library>.log`.
 * NVML_NO_MEMORY_V2 leaves out the second memory query (drivers before 510), NVML_NO_INIT and NVML_NO_SHUTDOWN those symbols.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, VERSION_MISMATCH = 25 };
enum { MAX_CARDS = 16 };

struct card {
    char name[96], uuid[96], pci[32];
    unsigned long long total, free, reserved;
    int handle_error, name_error, pci_error, v1_error, v2_error;
};

/* nvml.h: nvmlPciInfo_t, nvmlMemory_t, nvmlMemory_v2_t */
struct pci_info {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned int version; unsigned long long total, reserved, free, used; };

static struct card cards[MAX_CARDS];
static unsigned int card_count;
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

static void read_script(void) {
    char path[4096], line[512];
    card_count = 0;
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
            snprintf(cards[card_count++].name, sizeof cards[0].name, "%s", rest);
        }
        else if (!card) continue;
        else if (!strcmp(text, "uuid")) snprintf(card->uuid, sizeof card->uuid, "%s", rest);
        else if (!strcmp(text, "pci")) snprintf(card->pci, sizeof card->pci, "%s", rest);
        else if (!strcmp(text, "memory")) sscanf(rest, "%llu %llu %llu", &card->total, &card->free, &card->reserved);
        else if (!strcmp(text, "handle_error")) card->handle_error = atoi(rest);
        else if (!strcmp(text, "name_error")) card->name_error = atoi(rest);
        else if (!strcmp(text, "pci_error")) card->pci_error = atoi(rest);
        else if (!strcmp(text, "v2_error")) card->v2_error = atoi(rest);
        else if (!strcmp(text, "v1_error")) card->v1_error = atoi(rest);
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
    return snprintf(into, size, "%s", text) < (int)size ? SUCCESS : 7 /* INSUFFICIENT_SIZE */;
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

int nvmlDeviceGetMemoryInfo(struct card *card, struct memory *memory) {
    if (card->v1_error) return card->v1_error;
    memory->total = card->total;
    memory->free = card->free;
    memory->used = card->total - card->free;
    return SUCCESS;
}

#ifndef NVML_NO_MEMORY_V2
int nvmlDeviceGetMemoryInfo_v2(struct card *card, struct memory_v2 *memory) {
    if (card->v2_error) return card->v2_error;
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    memory->total = card->total;
    memory->reserved = card->reserved;
    memory->free = card->free;
    memory->used = card->total - card->free - card->reserved;
    return SUCCESS;
}
#endif
