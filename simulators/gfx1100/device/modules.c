/* Code objects: ELF images, alone or in a bundle of clang, and the kernels in them. */
#include "device.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_AMDGPU = 224, NOTE_METADATA = 32, UNKNOWN_SIZE = 0 };
static const char BUNDLE[] = "__CLANG_OFFLOAD_BUNDLE__";
static const char TARGET[] = "gfx1100";

static struct code_object *objects;
static uint64_t live_count;

static void destroy(struct code_object *object)
{
    for (size_t i = 0; i < object->kernel_count; i++) {
        free(object->kernels[i].name);
        free(object->kernels[i].descriptor);
        free(object->kernels[i].arguments);
    }
    free(object->kernels);
    free(object->image);
    free(object);
}

static bool read_notes(struct code_object *object, const Elf64_Phdr *segment)
{
    const char *at = object->image + segment->p_offset, *end = at + segment->p_filesz;
    while (at + sizeof(Elf64_Nhdr) <= end) {
        const Elf64_Nhdr *note = (const void *)at;
        const char *content = at + sizeof *note + ((note->n_namesz + 3) & ~3u);
        if (content + note->n_descsz > end) return false;
        if (note->n_type == NOTE_METADATA && !read_metadata(object, content, note->n_descsz))
            return false;
        at = content + ((note->n_descsz + 3) & ~3u);
    }
    return true;
}

static bool read_kernels(struct code_object *object)
{
    const Elf64_Ehdr *header = (const void *)object->image;
    const Elf64_Phdr *segments = (const void *)(object->image + header->e_phoff);
    for (int i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == PT_NOTE && !read_notes(object, &segments[i])) return false;
    return true;
}

/* GFX1100_DUMP names a folder that each code object is written to. */
static void dump(const struct code_object *object)
{
    static int number;
    char path[1024];
    const char *folder = getenv("GFX1100_DUMP");
    if (folder == NULL) return;
    snprintf(path, sizeof path, "%s/%03d.co", folder, number++);
    FILE *file = fopen(path, "wb");
    if (file == NULL) return;
    fwrite(object->image, 1, object->bytes, file);
    fclose(file);
}

static hipError_t load_elf(hipModule_t *module, const char *image, size_t bytes)
{
    Elf64_Ehdr header;
    if (bytes != UNKNOWN_SIZE && bytes < sizeof header) return hipErrorInvalidImage;
    memcpy(&header, image, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != MACHINE_AMDGPU)
        return hipErrorInvalidImage;
    size_t end = header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
    if (bytes == UNKNOWN_SIZE) bytes = end; /* the section headers come last */
    if (end > bytes) return hipErrorInvalidImage;
    struct code_object *object = calloc(1, sizeof *object);
    object->image = malloc(bytes);
    object->bytes = bytes;
    memcpy(object->image, image, bytes);
    if (!read_kernels(object)) {
        destroy(object);
        return hipErrorInvalidImage;
    }
    dump(object);
    device_log("code object of %zu bytes with %zu kernels", bytes, object->kernel_count);
    lock();
    object->next = objects;
    objects = object;
    live_count++;
    unlock();
    *module = (hipModule_t)object;
    return hipSuccess;
}

/* An entry is offset, size and length of the target's name, 8 bytes each, then the name. */
static hipError_t load_bundle(hipModule_t *module, const char *image)
{
    uint64_t count, entry[3];
    const char *at = image + strlen(BUNDLE);
    memcpy(&count, at, sizeof count);
    at += sizeof count;
    for (uint64_t i = 0; i < count; i++) {
        memcpy(entry, at, sizeof entry);
        at += sizeof entry;
        char target[256];
        snprintf(target, sizeof target, "%.*s", (int)entry[2], at);
        at += entry[2];
        if (entry[1] > 0 && strstr(target, TARGET) != NULL)
            return load_elf(module, image + entry[0], entry[1]);
    }
    return hipErrorNoBinaryForGpu;
}

static hipError_t load(hipModule_t *module, const char *image, size_t bytes)
{
    if (image == NULL || module == NULL) return hipErrorInvalidValue;
    bool long_enough = bytes == UNKNOWN_SIZE || bytes > strlen(BUNDLE);
    if (long_enough && memcmp(image, BUNDLE, strlen(BUNDLE)) == 0)
        return load_bundle(module, image);
    return load_elf(module, image, bytes);
}

static hipError_t load_file(hipModule_t *module, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return hipErrorFileNotFound;
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    char *image = malloc(bytes + 1);
    bool whole = fread(image, 1, bytes, file) == bytes;
    fclose(file);
    hipError_t status = whole && bytes > 0 ? load(module, image, bytes) : hipErrorInvalidImage;
    free(image);
    return status;
}

API hipError_t hipModuleLoadData(hipModule_t *module, const void *image)
{
    BEGIN("module");
    END(load(module, image, UNKNOWN_SIZE));
}

API hipError_t hipModuleLoad(hipModule_t *module, const char *path)
{
    BEGIN("module");
    END(load_file(module, path));
}

API hipError_t hipModuleUnload(hipModule_t module)
{
    BEGIN("release");
    lock();
    struct code_object **link = &objects;
    while (*link != NULL && (void *)*link != (void *)module) link = &(*link)->next;
    struct code_object *object = *link;
    if (object != NULL) {
        *link = object->next;
        live_count--;
    }
    unlock();
    REQUIRE(object != NULL, hipErrorInvalidHandle);
    destroy(object);
    return hipSuccess;
}

API hipError_t hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name)
{
    BEGIN("module");
    struct code_object *object = (struct code_object *)module;
    REQUIRE(object != NULL && name != NULL, hipErrorInvalidValue);
    for (size_t i = 0; i < object->kernel_count; i++) {
        if (strcmp(object->kernels[i].name, name) != 0) continue;
        *function = (hipFunction_t)&object->kernels[i];
        return hipSuccess;
    }
    device_log("no kernel %s", name);
    END(hipErrorNotFound);
}

API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, hipFunction_t function, int block_size, size_t dynamic_lds)
{
    (void)function, (void)block_size, (void)dynamic_lds;
    BEGIN("module");
    *blocks = 1;
    return hipSuccess;
}

uint64_t gfx1100_live_modules(void)
{
    return live_count;
}
