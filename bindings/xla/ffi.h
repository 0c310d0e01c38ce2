/* The part of XLA's foreign function interface that a handler reads (xla/ffi/api/c_api.h of jaxlib).

   Structures have the layout of version 0.1 of the interface and later; tests/xla compares it with
   the installed header. Addresses of buffers are integers, and pointers that no
   handler follows are opaque. */

typedef struct XLA_FFI_Error XLA_FFI_Error;

typedef struct XLA_FFI_Extension_Base {
    size_t struct_size;
    int type;
    struct XLA_FFI_Extension_Base *next;
} XLA_FFI_Extension_Base;

typedef struct XLA_FFI_Api_Version {
    size_t struct_size;
    void *extension_start;
    int major_version;
    int minor_version;
} XLA_FFI_Api_Version;

typedef struct XLA_FFI_Metadata {
    size_t struct_size;
    XLA_FFI_Api_Version api_version;
    uint32_t traits;
} XLA_FFI_Metadata;

typedef struct XLA_FFI_Metadata_Extension {
    XLA_FFI_Extension_Base extension_base;
    XLA_FFI_Metadata *metadata;
} XLA_FFI_Metadata_Extension;

typedef struct XLA_FFI_Error_Create_Args {
    size_t struct_size;
    void *extension_start;
    const char *message;
    int errc;
} XLA_FFI_Error_Create_Args;

typedef struct XLA_FFI_Error_Destroy_Args {
    size_t struct_size;
    void *extension_start;
    XLA_FFI_Error *error;
} XLA_FFI_Error_Destroy_Args;

typedef struct XLA_FFI_Stream_Get_Args {
    size_t struct_size;
    void *extension_start;
    void *ctx;
    uintptr_t stream;
} XLA_FFI_Stream_Get_Args;

typedef struct XLA_FFI_Api {
    size_t struct_size;
    void *extension_start;
    XLA_FFI_Api_Version api_version;
    void *internal_api;
    XLA_FFI_Error *(*XLA_FFI_Error_Create)(XLA_FFI_Error_Create_Args *args);
    void *error_message;
    void (*XLA_FFI_Error_Destroy)(XLA_FFI_Error_Destroy_Args *args);
    void *handler_register;
    XLA_FFI_Error *(*XLA_FFI_Stream_Get)(XLA_FFI_Stream_Get_Args *args);
} XLA_FFI_Api;

typedef struct XLA_FFI_Buffer {
    size_t struct_size;
    void *extension_start;
    int dtype;
    uintptr_t data;
    int64_t rank;
    int64_t *dims;
} XLA_FFI_Buffer;

typedef struct XLA_FFI_ByteSpan {
    const char *ptr;
    size_t len;
} XLA_FFI_ByteSpan;

typedef struct XLA_FFI_Args {
    size_t struct_size;
    void *extension_start;
    int64_t size;
    void *types;
    XLA_FFI_Buffer **args;
} XLA_FFI_Args;

typedef struct XLA_FFI_Rets {
    size_t struct_size;
    void *extension_start;
    int64_t size;
    void *types;
    XLA_FFI_Buffer **rets;
} XLA_FFI_Rets;

/* An attribute is a string, as declared here, only where its entry in types says so. */
typedef struct XLA_FFI_Attrs {
    size_t struct_size;
    void *extension_start;
    int64_t size;
    int *types;
    XLA_FFI_ByteSpan **names;
    XLA_FFI_ByteSpan **attrs;
} XLA_FFI_Attrs;

typedef struct XLA_FFI_CallFrame {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    const XLA_FFI_Api *api;
    void *ctx;
    int stage;
    XLA_FFI_Args args;
    XLA_FFI_Rets rets;
    XLA_FFI_Attrs attrs;
} XLA_FFI_CallFrame;
