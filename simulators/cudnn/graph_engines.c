/* The engines of the stand-in, its heuristics, configurations and plans.

   A configuration and a plan carry the graph and the engine's index with them, as attributes that
   nobody can ask them for. */
#include "graph.h"

enum { MAX_NOTES = 2 };

static const struct engine {
    const char *refusal; /* why no plan can be made of it, NULL if one can */
    int64_t workspace;
    int numerical_count, behavior_count;
    int numerical[MAX_NOTES], behavior[MAX_NOTES];
    bool has_tile; /* the knob CUDNN_KNOB_TYPE_TILE_SIZE; the workspace is for 0, and more above */
} engines[] = {
    {.refusal = "engine 0 is one that nobody can run"},
    {.workspace = 1024,
     .numerical_count = 1,
     .numerical = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE},
     .behavior_count = 1,
     .behavior = {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION},
     .has_tile = true},
    {.workspace = 64,
     .numerical_count = 2,
     .numerical = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CUDNN_NUMERICAL_NOTE_WINOGRAD}},
    {.workspace = 0},
};
enum { ENGINES = sizeof engines / sizeof engines[0] };
enum { LARGEST_TILE = 4 };

struct ranking {
    int count;
    struct {
        int engine, tile;
    } best[ENGINES];
};

static struct ranking ranking_of(const struct backend *heuristics)
{
    switch (enum_of(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, -1)) {
    case CUDNN_HEUR_MODE_A: case CUDNN_HEUR_MODE_INSTANT:
        return (struct ranking){4, {{0, 0}, {1, 3}, {2, 0}, {3, 0}}};
    /* One engine twice, set in two ways. */
    case CUDNN_HEUR_MODE_B: return (struct ranking){3, {{1, 3}, {1, 2}, {3, 0}}};
    default: return (struct ranking){1, {{3, 0}}};
    }
}

static cudnnStatus_t put_int64(
    struct backend *desc, cudnnBackendAttributeName_t name, int64_t value)
{
    return put_attribute(desc, name, sizeof value, 1, &value);
}

static cudnnStatus_t put_graph(struct backend *desc, const struct backend *graph)
{
    return put_attribute(desc, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, sizeof graph, 1, &graph);
}

static cudnnStatus_t describe_engine(struct backend *engine)
{
    int64_t index = int64_of(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0, -1);
    REQUIRE(
        index >= 0 && index < ENGINES, CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND,
        "there is no engine %lld", (long long)index);
    const struct engine *known = &engines[index];
    TRY(put_attribute(
        engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, sizeof(int), known->numerical_count,
        known->numerical));
    return put_attribute(
        engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, sizeof(int), known->behavior_count,
        known->behavior);
}

static cudnnStatus_t put_tile(struct backend *config, int64_t tile)
{
    int knob = CUDNN_KNOB_TYPE_TILE_SIZE;
    TRY(put_attribute(config, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, sizeof knob, 1, &knob));
    return put_int64(config, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, tile);
}

static cudnnStatus_t describe_config(struct backend *config)
{
    struct backend *engine = descriptor_of(config, CUDNN_ATTR_ENGINECFG_ENGINE, 0);
    int64_t index = int64_of(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0, 0);
    TRY(put_graph(config, descriptor_of(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, 0)));
    TRY(put_int64(config, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index));
    for (int64_t i = 0; i < count_of(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES); i++) {
        struct backend *choice = descriptor_of(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, i);
        int64_t value = int64_of(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 0, -1);
        REQUIRE(
            enum_of(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, -1) == CUDNN_KNOB_TYPE_TILE_SIZE
                && engines[index].has_tile && value >= 0 && value <= LARGEST_TILE,
            CUDNN_STATUS_NOT_SUPPORTED, "engine %lld has no such knob or value", (long long)index);
        TRY(put_tile(config, value));
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t describe_plan(struct backend *plan)
{
    struct backend *config = descriptor_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0);
    struct backend *graph = descriptor_of(config, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, 0);
    int64_t index = int64_of(config, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0, 0);
    int64_t tile = int64_of(config, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 0, 0);
    TRY(check_finalized(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
    const struct engine *engine = &engines[index];
    REQUIRE(engine->refusal == NULL, CUDNN_STATUS_NOT_SUPPORTED, "%s", engine->refusal);
    TRY(put_graph(plan, graph));
    return put_int64(
        plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, engine->workspace * (tile + 1));
}

static cudnnStatus_t check_fusion(const struct backend *heuristics)
{
    struct backend *graph = descriptor_of(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0);
    int64_t count = count_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    REQUIRE(
        count <= max_operations(), CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
        "no engine fuses %lld operations", (long long)count);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t complete_engine_objects(struct backend *desc)
{
    switch (desc->type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return put_int64(desc, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, ENGINES);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR: return describe_engine(desc);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: return describe_config(desc);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: return check_fusion(desc);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: return describe_plan(desc);
    default: return CUDNN_STATUS_SUCCESS;
    }
}

bool is_filled_when_read(const struct backend *desc, cudnnBackendAttributeName_t name)
{
    (void)desc;
    return name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE
        || name == CUDNN_ATTR_ENGINECFG_KNOB_CHOICES;
}

int64_t count_when_read(const struct backend *desc, cudnnBackendAttributeName_t name)
{
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: return ranking_of(desc).count;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
        return count_of(desc, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
    default: return 1;
    }
}

static cudnnStatus_t fill_config(
    const struct backend *heuristics, int64_t index, struct backend *config)
{
    struct ranking ranking = ranking_of(heuristics);
    int engine = ranking.best[index].engine;
    TRY(put_graph(config, descriptor_of(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0)));
    TRY(put_int64(config, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, engine));
    return engines[engine].has_tile ? put_tile(config, ranking.best[index].tile)
                                    : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fill_engine(const struct backend *config, struct backend *engine)
{
    TRY(put_graph(engine, descriptor_of(config, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, 0)));
    TRY(put_int64(
        engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
        int64_of(config, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0, 0)));
    return describe_engine(engine);
}

cudnnStatus_t fill_when_read(
    const struct backend *desc, cudnnBackendAttributeName_t name, int64_t index,
    struct backend *target)
{
    static const struct {
        cudnnBackendAttributeName_t name;
        cudnnBackendDescriptorType_t type;
    } kinds[] = {
        {CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR},
        {CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR},
        {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        REQUIRE(
            kinds[i].name != name || kinds[i].type == target->type, CUDNN_STATUS_BAD_PARAM,
            "a descriptor of type %d cannot be filled with attribute %d", (int)target->type,
            (int)name);
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: return fill_config(desc, index, target);
    case CUDNN_ATTR_ENGINECFG_ENGINE: return fill_engine(desc, target);
    default: return put_tile(target, int64_of(desc, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 0, 0));
    }
}
