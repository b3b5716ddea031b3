/* The kernels of look_up.c as an operator of onnxruntime: LookUp(values, parameters) of the domain "quantry".
 *
 * onnxruntime's C interface is a table of functions that only grows at its end, so a function is known by its place.
 * Of this large table only the few functions below are declared. Compiled once, without a level.
 */
#include "kernels.h"

/* The version that has everything used here, onnxruntime 1.20's; later ones serve it too. */
enum { API_VERSION = 20, FLOAT_TENSOR = 1, REQUIRED = 0, CPU_MEMORY = 0 };

/* Places in the table of functions. */
enum {
    CREATE_DOMAIN = 26, ADD_OPERATOR = 27, ADD_DOMAIN = 28, TENSOR_DATA = 51, GET_RANK = 61, GET_SHAPE = 62, GET_COUNT = 64,
    GET_TENSOR_INFO = 65, GET_INPUT = 90, GET_OUTPUT = 91, RELEASE_TENSOR_INFO = 99
};

typedef struct status status_t;
typedef struct { void *functions[RELEASE_TENSOR_INFO + 1]; } api_t;
typedef struct {
    const api_t *(*api)(uint32_t version);
    const char *(*version)(void);
} api_base_t;

#define CALL(api, place, type) ((type)(api)->functions[place])

typedef status_t *(*create_domain_t)(const char *name, void **domain);
typedef status_t *(*add_t)(void *to, const void *what);
typedef status_t *(*data_t)(void *tensor, void **data);
typedef status_t *(*number_t)(const void *info, size_t *number);
typedef status_t *(*shape_t)(const void *info, int64_t *dimensions, size_t rank);
typedef status_t *(*info_t)(const void *tensor, void **info);
typedef status_t *(*input_t)(const void *context, size_t index, const void **tensor);
typedef status_t *(*output_t)(void *context, size_t index, const int64_t *shape, size_t rank, void **tensor);
typedef void (*release_t)(void *info);

/* Every field of onnxruntime's OrtCustomOp, in its order. */
typedef struct operator operator_t;
struct operator {
    uint32_t version;
    void *(*create)(const operator_t *, const api_t *, const void *info);
    const char *(*name)(const operator_t *);
    const char *(*provider)(const operator_t *);
    int (*input_type)(const operator_t *, size_t);
    size_t (*input_count)(const operator_t *);
    int (*output_type)(const operator_t *, size_t);
    size_t (*output_count)(const operator_t *);
    void (*compute)(void *kernel, void *context);
    void (*destroy)(void *kernel);
    int (*input_kind)(const operator_t *, size_t);
    int (*output_kind)(const operator_t *, size_t);
    int (*input_memory)(const operator_t *, size_t);
    int (*variadic[4])(const operator_t *);
    status_t *(*create_v2)(const operator_t *, const api_t *, const void *info, void **kernel);
    status_t *(*compute_v2)(void *kernel, void *context);
    status_t *(*infer_shape)(const operator_t *, void *context);
    int (*first_version)(const operator_t *);
    int (*last_version)(const operator_t *);
    size_t (*may_overwrite)(int **inputs, int **outputs);
    void (*release_may_overwrite)(int *inputs, int *outputs);
    size_t (*aliases)(int **inputs, int **outputs);
    void (*release_aliases)(int *inputs, int *outputs);
};

typedef void kernel_t(const float *x, float *y, size_t count, const float *parameters, size_t size);
EXPORT const char *quantry_level(void);
#if defined(__x86_64__)
extern kernel_t quantry_look_up_v2, quantry_look_up_v3, quantry_look_up_v4;

static kernel_t *kernel_of_processor(void)
{
    const char *level = quantry_level();
    return level[0] != 'v' ? NULL : level[1] == '4' ? quantry_look_up_v4 : level[1] == '3' ? quantry_look_up_v3 : quantry_look_up_v2;
}
#else
extern kernel_t quantry_look_up_neon;

static kernel_t *kernel_of_processor(void)
{
    return quantry_look_up_neon;
}
#endif

/* Chosen once: asking the processor takes longer than the work of a small tensor, above all in a virtual machine. */
static kernel_t *look_up;

/* An operator keeps nothing between its runs. What onnxruntime calls the kernel is its table of functions. */
static void *create(const operator_t *self, const api_t *api, const void *info)
{
    (void)self, (void)info;
    return (void *)(uintptr_t)api;
}

static status_t *create_v2(const operator_t *self, const api_t *api, const void *info, void **kernel)
{
    *kernel = create(self, api, info);
    return NULL;
}

enum { MAX_RANK = 16 };

static status_t *compute_v2(void *kernel, void *context)
{
    const api_t *api = kernel;
    const void *tensors[2];
    void *infos[2] = {NULL, NULL}, *output = NULL;
    float *data[2], *result = NULL;
    size_t counts[2], rank = 0;
    int64_t shape[MAX_RANK];
    status_t *failed = NULL;
    for (size_t i = 0; i < 2 && !failed; i++) {
        failed = CALL(api, GET_INPUT, input_t)(context, i, &tensors[i]);
        if (!failed) failed = CALL(api, GET_TENSOR_INFO, info_t)(tensors[i], &infos[i]);
        if (!failed) failed = CALL(api, GET_COUNT, number_t)(infos[i], &counts[i]);
        if (!failed) failed = CALL(api, TENSOR_DATA, data_t)((void *)(uintptr_t)tensors[i], (void **)&data[i]);
    }
    if (!failed) failed = CALL(api, GET_RANK, number_t)(infos[0], &rank);
    /* Python refuses tensors of more dimensions, so there is nothing to report here. */
    rank = rank < MAX_RANK ? rank : MAX_RANK;
    if (!failed) failed = CALL(api, GET_SHAPE, shape_t)(infos[0], shape, rank);
    if (!failed) failed = CALL(api, GET_OUTPUT, output_t)(context, 0, shape, rank, &output);
    if (!failed) failed = CALL(api, TENSOR_DATA, data_t)(output, (void **)&result);
    for (size_t i = 0; i < 2; i++)
        if (infos[i]) CALL(api, RELEASE_TENSOR_INFO, release_t)(infos[i]);
    if (!failed && counts[0]) __atomic_load_n(&look_up, __ATOMIC_RELAXED)(data[0], result, counts[0], data[1], counts[1]);
    return failed;
}

static void compute(void *kernel, void *context)
{
    compute_v2(kernel, context);
}

static const char *name(const operator_t *self) { return (void)self, "LookUp"; }
static const char *provider(const operator_t *self) { return (void)self, (const char *)NULL; }
static int type(const operator_t *self, size_t index) { return (void)self, (void)index, FLOAT_TENSOR; }
static int kind(const operator_t *self, size_t index) { return (void)self, (void)index, REQUIRED; }
static int memory(const operator_t *self, size_t index) { return (void)self, (void)index, CPU_MEMORY; }
static size_t two(const operator_t *self) { return (void)self, (size_t)2; }
static size_t one(const operator_t *self) { return (void)self, (size_t)1; }
static int one_version(const operator_t *self) { return (void)self, 1; }
static void destroy(void *kernel) { (void)kernel; }

/* The result may replace the values in memory. */
static int first_tensor[1] = {0};

static size_t may_overwrite(int **inputs, int **outputs)
{
    *inputs = *outputs = first_tensor;
    return 1;
}

static void keep(int *inputs, int *outputs) { (void)inputs, (void)outputs; }

static const operator_t LOOK_UP = {
    .version = API_VERSION, .create = create, .name = name, .provider = provider, .input_type = type, .input_count = two,
    .output_type = type, .output_count = one, .compute = compute, .destroy = destroy, .input_kind = kind,
    .output_kind = kind, .input_memory = memory, .create_v2 = create_v2, .compute_v2 = compute_v2,
    .first_version = one_version, .last_version = one_version, .may_overwrite = may_overwrite,
    .release_may_overwrite = keep,
};

/* onnxruntime calls this for every session that asks for the library. */
EXPORT status_t *RegisterCustomOps(void *options, const api_base_t *base)
{
    static void *domain;
    const api_t *api = base->api(API_VERSION);
    __atomic_store_n(&look_up, kernel_of_processor(), __ATOMIC_RELAXED);
    void *known = __atomic_load_n(&domain, __ATOMIC_ACQUIRE);
    status_t *failed = NULL;
    if (!known) {
        failed = CALL(api, CREATE_DOMAIN, create_domain_t)("quantry", &known);
        if (!failed) failed = CALL(api, ADD_OPERATOR, add_t)(known, &LOOK_UP);
        if (!failed) __atomic_store_n(&domain, known, __ATOMIC_RELEASE);
    }
    return failed ? failed : CALL(api, ADD_DOMAIN, add_t)(options, known);
}
