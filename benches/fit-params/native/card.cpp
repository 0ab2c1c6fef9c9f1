// A GPU that is a number: enough of a ggml backend for loads that allocate nothing (`no_alloc`), which is all that
// common_fit_params does. Sizes are CUDA's (ggml-cuda.cu:880-920); what it is asked to compute is refused.

#include "ggml-backend-impl.h"
#include "ggml-backend.h"

#include <cstddef>
#include <cstdint>

static size_t g_total;
static size_t g_contexts;

static ggml_backend_dev_t the_device();
static ggml_backend_buffer_type_t the_memory();
static ggml_backend_buffer_type_t the_host_memory();

// Buffers of a load that allocates nothing are made by ggml itself and have no bytes.
static ggml_backend_buffer_t memory_alloc(ggml_backend_buffer_type_t, size_t) { return nullptr; }
static const char * card_name(ggml_backend_buffer_type_t) { return "CARD0"; }
static size_t memory_alignment(ggml_backend_buffer_type_t) { return 128; }

static size_t memory_alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    const size_t bytes = ggml_nbytes(tensor);
    const int64_t rest = tensor->ne[0] % 512;
    return rest != 0 && ggml_is_quantized(tensor->type) ? bytes + ggml_row_size(tensor->type, 512 - rest) : bytes;
}

// CUDA's pinned memory (ggml-cuda.cu:1259-1323), here not pinned. A card that has some keeps the CPU from rearranging its weights,
// and so large batches are computed on the card with them.
static const char * host_name(ggml_backend_buffer_type_t) { return "CARD_Host"; }

static ggml_backend_buffer_t host_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer != nullptr) {
        buffer->buft = buft;
    }
    return buffer;
}

static const char * backend_name(ggml_backend_t) { return "CARD"; }
static void backend_free(ggml_backend_t backend) { delete backend; }
static ggml_status backend_compute(ggml_backend_t, ggml_cgraph *) { return GGML_STATUS_FAILED; }

static const char * device_name(ggml_backend_dev_t) { return "CARD0"; }
static const char * device_description(ggml_backend_dev_t) { return "simulated card"; }
static void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = g_total; }
static enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

static void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props = {};
    props->name        = device_name(dev);
    props->description = device_description(dev);
    props->type        = GGML_BACKEND_DEVICE_TYPE_GPU;
    props->memory_free = props->memory_total = g_total;
    props->caps.host_buffer = true;
}

// Once per context, and so once per load of the fit (common/fit.cpp:59-70).
static ggml_backend_t device_init(ggml_backend_dev_t dev, const char *) {
    static ggml_guid guid = { 0x41, 0x75, 0x74, 0x6f, 0x70, 0x6c, 0x61, 0x63, 0x65, 0x2d, 0x63, 0x61, 0x72, 0x64, 0x2d, 0x30 };
    g_contexts++;
    ggml_backend_i iface = {};
    iface.get_name      = backend_name;
    iface.free          = backend_free;
    iface.graph_compute = backend_compute;
    return new ggml_backend { &guid, iface, dev, nullptr };
}

static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) { return the_memory(); }
static ggml_backend_buffer_type_t device_host_buffer_type(ggml_backend_dev_t) { return the_host_memory(); }

static bool device_supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
}

static bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t buft) { return buft == the_memory(); }

// ggml-cuda.cu:5739-5758: large batches are computed here even with the host's weights.
static bool device_offload_op(ggml_backend_dev_t, const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_GET_ROWS: return false;
        case GGML_OP_MUL_MAT: return op->ne[1] >= 32;
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_ROPE:
        case GGML_OP_ROPE_BACK: return op->ne[2] >= 32;
        default: return ggml_nrows(op) >= 32;
    }
}

static const char * reg_name(ggml_backend_reg_t) { return "CARD"; }
static size_t reg_count(ggml_backend_reg_t) { return 1; }
static ggml_backend_dev_t reg_device(ggml_backend_reg_t, size_t) { return the_device(); }

static ggml_backend_reg_t the_reg() {
    static ggml_backend_reg reg = { GGML_BACKEND_API_VERSION, { reg_name, reg_count, reg_device, nullptr }, nullptr };
    return &reg;
}

static ggml_backend_dev_t the_device() {
    static ggml_backend_device device = [] {
        ggml_backend_device_i iface = {};
        iface.get_name             = device_name;
        iface.get_description      = device_description;
        iface.get_memory           = device_memory;
        iface.get_type             = device_type;
        iface.get_props            = device_props;
        iface.init_backend         = device_init;
        iface.get_buffer_type      = device_buffer_type;
        iface.get_host_buffer_type = device_host_buffer_type;
        iface.supports_op          = device_supports_op;
        iface.supports_buft        = device_supports_buft;
        iface.offload_op           = device_offload_op;
        return ggml_backend_device { iface, the_reg(), nullptr };
    }();
    return &device;
}

static ggml_backend_buffer_type_t the_memory() {
    static ggml_backend_buffer_type memory = [] {
        ggml_backend_buffer_type_i iface = {};
        iface.get_name       = card_name;
        iface.alloc_buffer   = memory_alloc;
        iface.get_alignment  = memory_alignment;
        iface.get_alloc_size = memory_alloc_size;
        return ggml_backend_buffer_type { iface, the_device(), nullptr };
    }();
    return &memory;
}

static ggml_backend_buffer_type_t the_host_memory() {
    static ggml_backend_buffer_type memory = [] {
        ggml_backend_buffer_type_i iface = {};
        iface.get_name       = host_name;
        iface.alloc_buffer   = host_alloc;
        iface.get_alignment  = ggml_backend_cpu_buffer_type()->iface.get_alignment;
        iface.get_alloc_size = ggml_backend_cpu_buffer_type()->iface.get_alloc_size;
        iface.is_host        = ggml_backend_cpu_buffer_type()->iface.is_host;
        return ggml_backend_buffer_type { iface, the_device(), nullptr };
    }();
    return &memory;
}

// Gives the card so many bytes, all of them free, and registers it the first time.
extern "C" void fit_params_card(size_t total) {
    static bool registered = false;
    g_total = total;
    if (!registered) {
        ggml_backend_register(the_reg());
        registered = true;
    }
}

// Contexts made on the card so far.
extern "C" size_t fit_params_contexts() { return g_contexts; }
