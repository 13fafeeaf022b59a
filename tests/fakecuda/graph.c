/* Stream capture and graphs. A graph runs its nodes one after the other, in the order in which they were added. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"

struct node;

struct nodes {
    struct node **at;
    size_t n;
};

struct graph {
    void *handle;
    struct nodes nodes;
};

struct node {
    void *handle;
    struct graph *graph, *child;
    struct nodes deps;
    struct fc_work work;
};

struct step {
    void *node;
    struct fc_work work;
};

struct exec {
    void *handle;
    struct graph *graph; /* a clone: the original may go or change */
    struct step *steps;
    size_t n;
    uint64_t flags;
};

struct capture {
    uint64_t id;
    unsigned mode;
    long tid;
    int origin;
    struct graph *graph;
    bool to_graph, invalid;
    struct capture *next;
};

static struct {
    struct capture *capture;
    struct nodes deps;
    void **told; /* what cuStreamGetCaptureInfo handed out last */
} on_stream[FC_MAX_STREAMS];

static struct {
    uint64_t id; /* of the capture it was recorded in; 0: none */
    struct nodes deps;
} on_event[FC_MAX_EVENTS];

static struct capture *captures;
static uint64_t last_capture_id;
static __thread unsigned thread_mode = CU_CAPTURE_GLOBAL;

static long tid(void) { return syscall(SYS_gettid); }

/* ---- node lists ---- */

static void nodes_add(struct nodes *s, struct node *n)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i] == n)
            return;
    s->at = realloc(s->at, (s->n + 1) * sizeof *s->at);
    s->at[s->n++] = n;
}

static void nodes_clear(struct nodes *s)
{
    free(s->at);
    *s = (struct nodes){0};
}

static void nodes_merge(struct nodes *to, const struct nodes *from)
{
    for (size_t i = 0; i < from->n; i++)
        nodes_add(to, from->at[i]);
}

/* Handles into nodes; false if one is no node of that graph. */
static bool nodes_from(struct nodes *out, const struct graph *g, const CUgraphNode *handles, size_t n)
{
    *out = (struct nodes){0};
    for (size_t i = 0; i < n; i++) {
        struct node *d = handles ? fc_get(FC_K_NODE, handles[i]) : NULL;
        if (!d || d->graph != g) {
            nodes_clear(out);
            return false;
        }
        nodes_add(out, d);
    }
    return true;
}

/* ---- graphs ---- */

static struct graph *graph_new(void)
{
    struct graph *g = calloc(1, sizeof *g);
    g->handle = fc_add(FC_K_GRAPH, g);
    return g;
}

static struct node *graph_add(struct graph *g, const struct fc_work *w, const struct nodes *deps)
{
    struct node *n = calloc(1, sizeof *n);
    n->graph = g;
    n->work = *w;
    nodes_merge(&n->deps, deps);
    n->handle = fc_add(FC_K_NODE, n);
    g->nodes.at = realloc(g->nodes.at, (g->nodes.n + 1) * sizeof *g->nodes.at);
    g->nodes.at[g->nodes.n++] = n;
    return n;
}

static void graph_free(struct graph *g)
{
    for (size_t i = 0; i < g->nodes.n; i++) {
        struct node *n = g->nodes.at[i];
        if (n->child)
            graph_free(n->child);
        nodes_clear(&n->deps);
        fc_del(FC_K_NODE, n->handle);
        free(n);
    }
    nodes_clear(&g->nodes);
    fc_del(FC_K_GRAPH, g->handle);
    free(g);
}

static struct graph *graph_clone(const struct graph *g)
{
    struct graph *c = graph_new();
    for (size_t i = 0; i < g->nodes.n; i++) {
        const struct node *n = g->nodes.at[i];
        struct nodes deps = {0};
        for (size_t d = 0; d < n->deps.n; d++)
            for (size_t k = 0; k < i; k++)
                if (g->nodes.at[k] == n->deps.at[d])
                    nodes_add(&deps, c->nodes.at[k]);
        struct node *m = graph_add(c, &n->work, &deps);
        nodes_clear(&deps);
        if (n->child)
            m->child = graph_clone(n->child);
    }
    return c;
}

/* ---- capture ---- */

static struct capture *capture_by_id(uint64_t id)
{
    for (struct capture *c = captures; c; c = c->next)
        if (c->id == id)
            return c;
    return NULL;
}

int fc_capture_status(int stream)
{
    const struct capture *c = on_stream[stream].capture;
    return !c ? CU_CAPTURE_STATUS_NONE : c->invalid ? CU_CAPTURE_STATUS_INVALIDATED : CU_CAPTURE_STATUS_ACTIVE;
}

void fc_capture_invalidate_stream(int stream)
{
    if (on_stream[stream].capture)
        on_stream[stream].capture->invalid = true;
}

static bool implied(int stream, bool invalidate)
{
    const struct fc_stream *s = &fc_world->streams[stream];
    bool any = false;
    if (!s->legacy || !captures)
        return false;
    for (int i = 0; i < FC_MAX_STREAMS; i++) {
        const struct fc_stream *o = &fc_world->streams[i];
        if (!on_stream[i].capture || o->ctx != s->ctx || (o->flags & CU_STREAM_NON_BLOCKING))
            continue;
        any = true;
        if (invalidate)
            on_stream[i].capture->invalid = true;
    }
    return any;
}

bool fc_capture_implicit(int stream) { return implied(stream, true); }

CUresult fc_capture_unsafe(void)
{
    CUresult r = CUDA_SUCCESS;
    if (thread_mode == CU_CAPTURE_RELAXED)
        return r;
    for (struct capture *c = captures; c; c = c->next) {
        bool mine = c->tid == tid() && c->mode != CU_CAPTURE_RELAXED;
        bool anyones = c->mode == CU_CAPTURE_GLOBAL && thread_mode == CU_CAPTURE_GLOBAL;
        if (!mine && !anyones)
            continue;
        c->invalid = true;
        r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return r;
}

static struct node *capture_node(int stream, const struct fc_work *w)
{
    struct node *n = graph_add(on_stream[stream].capture->graph, w, &on_stream[stream].deps);
    nodes_clear(&on_stream[stream].deps);
    nodes_add(&on_stream[stream].deps, n);
    return n;
}

CUresult fc_capture_add(int stream, struct fc_work *w)
{
    if (on_stream[stream].capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture_node(stream, w);
    return CUDA_SUCCESS;
}

bool fc_event_captured(int event) { return on_event[event].id != 0; }

void fc_event_uncapture(int event)
{
    on_event[event].id = 0;
    nodes_clear(&on_event[event].deps);
}

CUresult fc_capture_record(int stream, int event)
{
    struct capture *c = on_stream[stream].capture;
    if (c->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    fc_event_uncapture(event);
    on_event[event].id = c->id;
    nodes_merge(&on_event[event].deps, &on_stream[stream].deps);
    return CUDA_SUCCESS;
}

CUresult fc_capture_wait(int stream, int event)
{
    struct capture *cs = on_stream[stream].capture, *ce = capture_by_id(on_event[event].id);
    if (on_event[event].id && !ce)
        return CUDA_ERROR_CAPTURED_EVENT; /* of a capture that is over */
    if (cs && !ce) {
        cs->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (ce->invalid || (cs && cs->invalid))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (cs && cs != ce) {
        cs->invalid = ce->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (fc_world->streams[stream].legacy) {
        ce->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (!cs)
        nodes_clear(&on_stream[stream].deps);
    on_stream[stream].capture = ce;
    nodes_merge(&on_stream[stream].deps, &on_event[event].deps);
    return CUDA_SUCCESS;
}

static CUresult begin(int api, CUstream s, unsigned mode, CUgraph into, const CUgraphNode *deps, size_t n)
{
    ENTER_CTX(api);
    int i = fc_stream_arg(s);
    struct graph *g = into ? fc_get(FC_K_GRAPH, into) : NULL;
    struct nodes start = {0};
    if (i < 0)
        return fc_leave(CUDA_ERROR_INVALID_HANDLE);
    if (mode > CU_CAPTURE_RELAXED || (into && (!g || !nodes_from(&start, g, deps, n))))
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    if (on_stream[i].capture || fc_world->streams[i].legacy) {
        nodes_clear(&start);
        return fc_leave(on_stream[i].capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    struct capture *c = malloc(sizeof *c);
    *c = (struct capture){.id = ++last_capture_id, .mode = mode, .tid = tid(), .origin = i,
                          .graph = g ? g : graph_new(), .to_graph = g != NULL, .next = captures};
    captures = c;
    on_stream[i].capture = c;
    nodes_clear(&on_stream[i].deps);
    on_stream[i].deps = start;
    fc_log(fc_symbol(api), NULL, mode, i, 0);
    return fc_leave(CUDA_SUCCESS);
}

static CUresult do_cuStreamBeginCapture_v2(int api, CUstream s, unsigned mode) { return begin(api, s, mode, NULL, NULL, 0); }
BOTH(cuStreamBeginCapture_v2, (CUstream s, unsigned mode), mode)

static CUresult do_cuStreamBeginCaptureToGraph(int api, CUstream s, CUgraph g, const CUgraphNode *d, size_t n, unsigned mode)
{
    return g ? begin(api, s, mode, g, d, n) : CUDA_ERROR_INVALID_VALUE;
}
BOTH(cuStreamBeginCaptureToGraph,
     (CUstream s, CUgraph g, const CUgraphNode *d, const void *edges __attribute__((unused)), size_t n, unsigned mode),
     g, d, n, mode)

static void mark_reached(const struct graph *g, const struct node *n, char *reached)
{
    for (size_t i = 0; i < g->nodes.n; i++) {
        if (g->nodes.at[i] != n || reached[i])
            continue;
        reached[i] = 1;
        for (size_t d = 0; d < n->deps.n; d++)
            mark_reached(g, n->deps.at[d], reached);
    }
}

/* Some stream of the capture has work that the origin does not follow. */
static bool unjoined(const struct capture *c)
{
    char *reached = calloc(c->graph->nodes.n + 1, 1);
    bool any = false;
    for (size_t d = 0; d < on_stream[c->origin].deps.n; d++)
        mark_reached(c->graph, on_stream[c->origin].deps.at[d], reached);
    for (int i = 0; i < FC_MAX_STREAMS; i++) {
        if (on_stream[i].capture != c)
            continue;
        for (size_t d = 0; d < on_stream[i].deps.n; d++)
            for (size_t k = 0; k < c->graph->nodes.n; k++)
                any |= c->graph->nodes.at[k] == on_stream[i].deps.at[d] && !reached[k];
    }
    free(reached);
    return any;
}

static CUresult do_cuStreamEndCapture(int api, CUstream s, CUgraph *out)
{
    ENTER_CTX(api);
    int i = fc_stream_arg(s);
    if (i < 0 || !out)
        return fc_leave(i < 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
    struct capture *c = on_stream[i].capture;
    if (!c)
        return fc_leave(CUDA_ERROR_ILLEGAL_STATE);
    if (c->origin != i) {
        c->invalid = true;
        return fc_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if (c->mode != CU_CAPTURE_RELAXED && c->tid != tid()) {
        c->invalid = true;
        return fc_leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    CUresult r = c->invalid      ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                 : unjoined(c) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                               : CUDA_SUCCESS;
    for (int k = 0; k < FC_MAX_STREAMS; k++) {
        if (on_stream[k].capture != c)
            continue;
        on_stream[k].capture = NULL;
        nodes_clear(&on_stream[k].deps);
    }
    for (struct capture **p = &captures; *p; p = &(*p)->next) {
        if (*p == c) {
            *p = c->next;
            break;
        }
    }
    *out = r == CUDA_SUCCESS ? c->graph->handle : NULL;
    if (r != CUDA_SUCCESS && !c->to_graph)
        graph_free(c->graph);
    free(c);
    fc_log(fc_symbol(api), NULL, (uint64_t)r, i, 0);
    return fc_leave(r);
}
BOTH(cuStreamEndCapture, (CUstream s, CUgraph *out), out)

static CUresult do_cuStreamIsCapturing(int api, CUstream s, unsigned *out)
{
    ENTER_CTX(api);
    int i = fc_stream_arg(s);
    if (i < 0 || !out)
        return fc_leave(i < 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
    if (implied(i, false))
        return fc_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *out = (unsigned)fc_capture_status(i);
    return fc_leave(CUDA_SUCCESS);
}
BOTH(cuStreamIsCapturing, (CUstream s, unsigned *out), out)

static CUresult capture_info(int api, CUstream s, unsigned *status, uint64_t *id, CUgraph *graph,
                             const CUgraphNode **deps, size_t *n)
{
    ENTER_CTX(api);
    int i = fc_stream_arg(s);
    if (i < 0 || !status)
        return fc_leave(i < 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
    if (implied(i, false))
        return fc_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *status = (unsigned)fc_capture_status(i);
    const struct capture *c = on_stream[i].capture;
    if (*status != CU_CAPTURE_STATUS_ACTIVE)
        return fc_leave(CUDA_SUCCESS);
    if (id)
        *id = c->id;
    if (graph)
        *graph = c->graph->handle;
    if (n)
        *n = on_stream[i].deps.n;
    if (deps) {
        on_stream[i].told = realloc(on_stream[i].told, (on_stream[i].deps.n + 1) * sizeof(void *));
        for (size_t d = 0; d < on_stream[i].deps.n; d++)
            on_stream[i].told[d] = on_stream[i].deps.at[d]->handle;
        *deps = (const CUgraphNode *)on_stream[i].told;
    }
    return fc_leave(CUDA_SUCCESS);
}

static CUresult do_cuStreamGetCaptureInfo_v2(int api, CUstream s, unsigned *status, uint64_t *id, CUgraph *graph,
                                             const CUgraphNode **deps, size_t *n)
{
    return capture_info(api, s, status, id, graph, deps, n);
}
BOTH(cuStreamGetCaptureInfo_v2,
     (CUstream s, unsigned *status, uint64_t *id, CUgraph *graph, const CUgraphNode **deps, size_t *n), status, id,
     graph, deps, n)

static CUresult do_cuStreamGetCaptureInfo_v3(int api, CUstream s, unsigned *status, uint64_t *id, CUgraph *graph,
                                             const CUgraphNode **deps, const void **edges, size_t *n)
{
    if (edges)
        *edges = NULL;
    return capture_info(api, s, status, id, graph, deps, n);
}
BOTH(cuStreamGetCaptureInfo_v3,
     (CUstream s, unsigned *status, uint64_t *id, CUgraph *graph, const CUgraphNode **deps, const void **edges,
      size_t *n),
     status, id, graph, deps, edges, n)

static CUresult do_cuStreamUpdateCaptureDependencies_v2(int api, CUstream s, const CUgraphNode *deps, size_t n, unsigned flags)
{
    ENTER_CTX(api);
    int i = fc_stream_arg(s);
    struct nodes set;
    if (i < 0)
        return fc_leave(CUDA_ERROR_INVALID_HANDLE);
    if (fc_capture_status(i) != CU_CAPTURE_STATUS_ACTIVE)
        return fc_leave(CUDA_ERROR_ILLEGAL_STATE);
    if (flags > 1 || !nodes_from(&set, on_stream[i].capture->graph, deps, n))
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    if (flags == 1)
        nodes_clear(&on_stream[i].deps);
    nodes_merge(&on_stream[i].deps, &set);
    nodes_clear(&set);
    return fc_leave(CUDA_SUCCESS);
}
BOTH(cuStreamUpdateCaptureDependencies_v2,
     (CUstream s, CUgraphNode *deps, const void *edges __attribute__((unused)), size_t n, unsigned flags), deps, n, flags)

CUresult fc_cuThreadExchangeStreamCaptureMode(unsigned *mode)
{
    ENTER(FC_cuThreadExchangeStreamCaptureMode);
    if (!mode || *mode > CU_CAPTURE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned was = thread_mode;
    thread_mode = *mode;
    *mode = was;
    return CUDA_SUCCESS;
}

/* ---- graph API ---- */

CUresult fc_cuGraphCreate(CUgraph *out, unsigned flags)
{
    ENTER_LOCKED(FC_cuGraphCreate);
    if (!out || flags)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    *out = graph_new()->handle;
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGraphDestroy(CUgraph h)
{
    ENTER_LOCKED(FC_cuGraphDestroy);
    struct graph *g = fc_get(FC_K_GRAPH, h);
    if (!g)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    graph_free(g);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGraphClone(CUgraph *out, CUgraph h)
{
    ENTER_LOCKED(FC_cuGraphClone);
    const struct graph *g = fc_get(FC_K_GRAPH, h);
    if (!g || !out)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    *out = graph_clone(g)->handle;
    return fc_leave(CUDA_SUCCESS);
}

/* The usual way of the graph API: out NULL asks for the number. */
static CUresult give_nodes(const struct nodes *s, bool roots_only, CUgraphNode *out, size_t *n)
{
    size_t found = 0, room = out ? *n : 0;
    for (size_t i = 0; i < s->n; i++) {
        if (roots_only && s->at[i]->deps.n)
            continue;
        if (found < room)
            out[found] = s->at[i]->handle;
        found++;
    }
    for (size_t i = found; i < room; i++)
        out[i] = NULL;
    if (!out || found < room)
        *n = found;
    return CUDA_SUCCESS;
}

static CUresult graph_nodes(int api, CUgraph h, bool roots_only, CUgraphNode *out, size_t *n)
{
    ENTER_LOCKED(api);
    const struct graph *g = fc_get(FC_K_GRAPH, h);
    return fc_leave(g && n ? give_nodes(&g->nodes, roots_only, out, n) : CUDA_ERROR_INVALID_VALUE);
}

CUresult fc_cuGraphGetNodes(CUgraph h, CUgraphNode *out, size_t *n) { return graph_nodes(FC_cuGraphGetNodes, h, false, out, n); }
CUresult fc_cuGraphGetRootNodes(CUgraph h, CUgraphNode *out, size_t *n)
{
    return graph_nodes(FC_cuGraphGetRootNodes, h, true, out, n);
}

CUresult fc_cuGraphNodeGetDependencies_v2(CUgraphNode h, CUgraphNode *out, void *edges, size_t *n)
{
    (void)edges;
    ENTER_LOCKED(FC_cuGraphNodeGetDependencies_v2);
    const struct node *d = fc_get(FC_K_NODE, h);
    return fc_leave(d && n ? give_nodes(&d->deps, false, out, n) : CUDA_ERROR_INVALID_VALUE);
}

CUresult fc_cuGraphNodeGetType(CUgraphNode h, unsigned *out)
{
    ENTER_LOCKED(FC_cuGraphNodeGetType);
    const struct node *n = fc_get(FC_K_NODE, h);
    if (!n || !out)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    *out = (unsigned)n->work.node_type;
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGraphChildGraphNodeGetGraph(CUgraphNode h, CUgraph *out)
{
    ENTER_LOCKED(FC_cuGraphChildGraphNodeGetGraph);
    const struct node *n = fc_get(FC_K_NODE, h);
    if (!n || !n->child || !out)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    *out = n->child->handle;
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGraphKernelNodeGetParams_v2(CUgraphNode h, CUDA_KERNEL_NODE_PARAMS *out)
{
    ENTER_LOCKED(FC_cuGraphKernelNodeGetParams_v2);
    const struct node *n = fc_get(FC_K_NODE, h);
    if (!n || n->work.node_type != CU_NODE_KERNEL || !out)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    *out = n->work.kernel;
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGraphKernelNodeSetParams_v2(CUgraphNode h, const CUDA_KERNEL_NODE_PARAMS *k)
{
    ENTER_LOCKED(FC_cuGraphKernelNodeSetParams_v2);
    struct node *n = fc_get(FC_K_NODE, h);
    if (!n || n->work.node_type != CU_NODE_KERNEL || !k)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    return fc_leave(fc_kernel_work(n->work.api, k, &n->work));
}

static CUresult add_node(CUgraphNode *out, CUgraph h, const CUgraphNode *deps, size_t n, const struct fc_work *w,
                         struct graph *child)
{
    struct graph *g = fc_get(FC_K_GRAPH, h);
    struct nodes after;
    if (!g || !out || !nodes_from(&after, g, deps, n))
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    struct node *added = graph_add(g, w, &after);
    nodes_clear(&after);
    added->child = child ? graph_clone(child) : NULL;
    *out = added->handle;
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n,
                                    const CUDA_KERNEL_NODE_PARAMS *k)
{
    ENTER_LOCKED(FC_cuGraphAddKernelNode_v2);
    struct fc_work w;
    CUresult r = k ? fc_kernel_work(FC_cuGraphAddKernelNode_v2, k, &w) : CUDA_ERROR_INVALID_VALUE;
    return r == CUDA_SUCCESS ? add_node(out, g, deps, n, &w, NULL) : fc_leave(r);
}

CUresult fc_cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n, CUgraph child)
{
    ENTER_LOCKED(FC_cuGraphAddChildGraphNode);
    struct graph *c = fc_get(FC_K_GRAPH, child);
    struct fc_work w = FC_WORK(FC_cuGraphAddChildGraphNode, CU_NODE_GRAPH, FC_OP_EFFECT);
    return c ? add_node(out, g, deps, n, &w, c) : fc_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult fc_cuGraphAddEmptyNode(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n)
{
    ENTER_LOCKED(FC_cuGraphAddEmptyNode);
    struct fc_work w = FC_WORK(FC_cuGraphAddEmptyNode, CU_NODE_EMPTY, FC_OP_EFFECT);
    return add_node(out, g, deps, n, &w, NULL);
}

CUresult fc_cuGraphAddHostNode(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n, void *const *params)
{
    ENTER_LOCKED(FC_cuGraphAddHostNode);
    struct fc_work w = FC_WORK(FC_cuGraphAddHostNode, CU_NODE_HOST, FC_OP_EFFECT);
    if (!params || !params[0])
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    w.fx = (struct fc_fx){.kind = FC_FX_HOST, .fn = (CUhostFn)params[0], .arg = params[1]}; /* CUDA_HOST_NODE_PARAMS */
    return add_node(out, g, deps, n, &w, NULL);
}

static CUresult add_event_node(int api, int type, enum fc_op_kind kind, CUgraphNode *out, CUgraph g,
                               const CUgraphNode *deps, size_t n, CUevent event)
{
    ENTER_LOCKED(api);
    struct fc_work w = FC_WORK(api, type, kind);
    w.event = fc_event_find(event);
    w.id = (uint64_t)event;
    return w.event >= 0 ? add_node(out, g, deps, n, &w, NULL) : fc_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult fc_cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n, CUevent e)
{
    return add_event_node(FC_cuGraphAddEventRecordNode, CU_NODE_EVENT_RECORD, FC_OP_RECORD, out, g, deps, n, e);
}

CUresult fc_cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n, CUevent e)
{
    return add_event_node(FC_cuGraphAddEventWaitNode, CU_NODE_WAIT_EVENT, FC_OP_WAIT_EVENT, out, g, deps, n, e);
}

/* ---- executable graphs ---- */

static void flatten(struct exec *e, const struct graph *g, const struct graph *original)
{
    for (size_t i = 0; i < g->nodes.n; i++) {
        const struct node *n = g->nodes.at[i];
        if (n->child) {
            flatten(e, n->child, original ? original->nodes.at[i]->child : NULL);
            continue;
        }
        e->steps = realloc(e->steps, (e->n + 1) * sizeof *e->steps);
        e->steps[e->n].node = original ? original->nodes.at[i]->handle : NULL;
        e->steps[e->n++].work = n->work;
    }
}

static CUresult instantiate(int api, CUgraphExec *out, CUgraph h, uint64_t flags)
{
    ENTER_CTX(api);
    const struct graph *g = fc_get(FC_K_GRAPH, h);
    if (!g || !out)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    struct exec *e = calloc(1, sizeof *e);
    e->flags = flags;
    e->graph = graph_clone(g);
    flatten(e, e->graph, g);
    e->handle = *out = fc_add(FC_K_EXEC, e);
    fc_log(fc_symbol(api), NULL, e->n, -1, 0);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
    return instantiate(FC_cuGraphInstantiateWithFlags, out, g, flags);
}

CUresult fc_cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *bad, char *text, size_t bytes)
{
    if (bad)
        *bad = NULL;
    if (text && bytes)
        *text = 0;
    return instantiate(FC_cuGraphInstantiate_v2, out, g, 0);
}

static CUresult with_params(int api, CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = instantiate(api, out, g, p->flags);
    p->hErrNode_out = NULL;
    p->result_out = r == CUDA_SUCCESS ? 0 : 1;
    return r;
}

CUresult fc_cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    return with_params(FC_cuGraphInstantiateWithParams, out, g, p);
}
CUresult fc_cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    return with_params(FC_cuGraphInstantiateWithParams_ptsz, out, g, p);
}

static void exec_clear(struct exec *e)
{
    graph_free(e->graph);
    free(e->steps);
    e->steps = NULL;
    e->n = 0;
}

CUresult fc_cuGraphExecDestroy(CUgraphExec h)
{
    ENTER_LOCKED(FC_cuGraphExecDestroy);
    struct exec *e = fc_get(FC_K_EXEC, h);
    if (!e)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    fc_log("cuGraphExecDestroy", NULL, (uint64_t)h, -1, 0);
    exec_clear(e);
    fc_del(FC_K_EXEC, h);
    free(e);
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGraphExecGetFlags(CUgraphExec h, uint64_t *out)
{
    ENTER_LOCKED(FC_cuGraphExecGetFlags);
    const struct exec *e = fc_get(FC_K_EXEC, h);
    if (!e || !out)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    *out = e->flags;
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGraphExecUpdate_v2(CUgraphExec h, CUgraph gh, CUgraphExecUpdateResultInfo *info)
{
    ENTER_CTX(FC_cuGraphExecUpdate_v2);
    struct exec *e = fc_get(FC_K_EXEC, h), fresh = {0};
    const struct graph *g = fc_get(FC_K_GRAPH, gh);
    if (!e || !g || !info)
        return fc_leave(CUDA_ERROR_INVALID_VALUE);
    fresh.graph = graph_clone(g);
    flatten(&fresh, fresh.graph, g);
    bool same = fresh.n == e->n;
    for (size_t i = 0; same && i < e->n; i++)
        same = fresh.steps[i].work.node_type == e->steps[i].work.node_type;
    *info = (CUgraphExecUpdateResultInfo){.result = same ? 0 : 2}; /* 2: topology changed */
    if (!same) {
        exec_clear(&fresh);
        return fc_leave(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    }
    exec_clear(e);
    e->graph = fresh.graph;
    e->steps = fresh.steps;
    e->n = fresh.n;
    return fc_leave(CUDA_SUCCESS);
}

CUresult fc_cuGraphExecKernelNodeSetParams_v2(CUgraphExec h, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *k)
{
    ENTER_LOCKED(FC_cuGraphExecKernelNodeSetParams_v2);
    struct exec *e = fc_get(FC_K_EXEC, h);
    for (size_t i = 0; e && k && i < e->n; i++)
        if (e->steps[i].node == node && e->steps[i].work.node_type == CU_NODE_KERNEL)
            return fc_leave(fc_kernel_work(e->steps[i].work.api, k, &e->steps[i].work));
    return fc_leave(CUDA_ERROR_INVALID_VALUE);
}

static CUresult do_cuGraphLaunch(int api, CUstream s, CUgraphExec h)
{
    ENTER_CTX(api);
    struct exec *e = fc_get(FC_K_EXEC, h);
    int i = fc_stream_arg(s);
    if (!e || i < 0)
        return fc_leave(i < 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
    if (fc_capture_implicit(i))
        return fc_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (fc_capture_status(i)) {
        if (on_stream[i].capture->invalid)
            return fc_leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        struct fc_work w = FC_WORK(api, CU_NODE_GRAPH, FC_OP_EFFECT);
        capture_node(i, &w)->child = graph_clone(e->graph);
        fc_log(fc_symbol(api), NULL, e->n, i, FAKECUDA_CALL_CAPTURED);
        return fc_leave(CUDA_SUCCESS);
    }
    uint64_t log = fc_log(fc_symbol(api), NULL, e->n, i, 0);
    size_t n = e->n;
    struct step *steps = malloc((n + 1) * sizeof *steps); /* a full queue gives up the lock */
    memcpy(steps, e->steps, n * sizeof *steps);
    for (size_t k = 0; k < n; k++) {
        const struct fc_work *w = &steps[k].work;
        uint64_t entry = fc_log(fc_symbol(w->api), w->detail, w->id, i, FAKECUDA_CALL_IN_GRAPH);
        fc_push_work(i, w, entry, log);
    }
    if (n == 0) {
        struct fc_work nothing = FC_WORK(api, CU_NODE_EMPTY, FC_OP_EFFECT);
        fc_push_work(i, &nothing, log, 0);
    }
    free(steps);
    return fc_leave(CUDA_SUCCESS);
}
BOTH(cuGraphLaunch, (CUgraphExec h, CUstream s), h)

static CUresult do_cuGraphUpload(int api, CUstream s, CUgraphExec h)
{
    ENTER_CTX(api);
    return fc_leave(fc_stream_arg(s) < 0 ? CUDA_ERROR_INVALID_HANDLE
                    : fc_get(FC_K_EXEC, h) ? CUDA_SUCCESS
                                           : CUDA_ERROR_INVALID_VALUE);
}
BOTH(cuGraphUpload, (CUgraphExec h, CUstream s), h)
