/* Line diff of two texts. text_diff.py trims equal lines at both ends and calls this for the rest.
 *
 * Lines that occur once on both sides are anchors (patience diff); between them the shortest edit is searched from both
 * ends in linear space (Myers). Both are bounded, so the worst input costs about the number of lines times COST steps
 * and gets a correct edit that is not the shortest. The caller seeds the hash, so collisions cannot be prepared. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 32, COST = 256 };

static const uint32_t NOWHERE = UINT32_MAX; /* no equal line on the other side */

struct side {
    const uint8_t *text;
    uint64_t size;
    uint32_t count;    /* of lines */
    uint32_t *starts;  /* of each line, and the end of the last one */
    uint32_t *ids;     /* equal lines have equal ids */
    uint8_t *changed;  /* the result */
    uint32_t *common;  /* ids of the lines that occur on both sides */
    uint32_t *where;   /* their numbers */
    uint32_t commons;
};

struct slot {
    uint32_t hash, line; /* the first line of a with this content, plus one */
};

struct box {
    uint32_t x0, x1, y0, y1, level;
};

struct work {
    struct side a, b;
    struct slot *slots;
    uint8_t *seen_x, *seen_y; /* how often an id occurs in a box: 0, 1 or more */
    uint32_t *place;          /* its position in b */
    uint32_t *pairs, *tails, *before;
    int32_t *forward, *backward;
    struct box *boxes;
    uint64_t waiting, room;
};

static uint64_t hash_of(const uint8_t *text, uint64_t size, uint64_t seed)
{
    uint64_t hash = seed ^ (size * 0x9e3779b97f4a7c15u), word;
    for (; size >= 8; text += 8, size -= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * 0xbf58476d1ce4e5b9u;
        hash ^= hash >> 29;
    }
    word = 0;
    memcpy(&word, text, size);
    hash = (hash ^ word ^ seed) * 0x94d049bb133111ebu;
    hash ^= hash >> 32;
    return hash;
}

static int index_lines(struct side *side)
{
    uint64_t lines = 0, at = 0;
    for (uint64_t each = 0; each < side->size; each++)
        lines += side->text[each] == '\n';
    if (side->size && side->text[side->size - 1] != '\n')
        lines++;
    side->count = (uint32_t)lines;
    side->starts = malloc((lines + 1) * sizeof *side->starts);
    side->ids = malloc((lines + 1) * sizeof *side->ids);
    side->changed = calloc(lines + 1, 1);
    side->common = malloc((lines + 1) * sizeof *side->common);
    side->where = malloc((lines + 1) * sizeof *side->where);
    if (!side->starts || !side->ids || !side->changed || !side->common || !side->where)
        return 0;
    for (uint64_t line = 0; line < lines; line++) {
        const uint8_t *end = memchr(side->text + at, '\n', side->size - at);
        side->starts[line] = (uint32_t)at;
        at = end ? (uint64_t)(end - side->text) + 1 : side->size;
    }
    side->starts[lines] = (uint32_t)side->size;
    return 1;
}

/* Assign equal ids to equal lines. Lines of b that are not in a need no id. */
static int classify(struct work *work, uint64_t seed)
{
    struct side *a = &work->a, *b = &work->b;
    uint64_t capacity = 16;
    while (capacity < 2 * (uint64_t)a->count)
        capacity *= 2;
    work->slots = calloc(capacity, sizeof *work->slots);
    work->seen_x = calloc((uint64_t)a->count + 1, 1);
    work->seen_y = calloc((uint64_t)a->count + 1, 1);
    work->place = malloc(((uint64_t)a->count + 1) * sizeof *work->place);
    if (!work->slots || !work->seen_x || !work->seen_y || !work->place)
        return 0;
    for (int second = 0; second < 2; second++) {
        struct side *side = second ? b : a;
        for (uint32_t line = 0; line < side->count; line++) {
            const uint8_t *text = side->text + side->starts[line];
            uint64_t size = side->starts[line + 1] - side->starts[line];
            uint32_t hash = (uint32_t)hash_of(text, size, seed);
            uint64_t at = hash & (capacity - 1);
            for (;; at = (at + 1) & (capacity - 1)) {
                struct slot *slot = work->slots + at;
                if (!slot->line) {
                    if (!second)
                        *slot = (struct slot){hash, line + 1};
                    side->ids[line] = second ? NOWHERE : line;
                    break;
                }
                uint32_t first = slot->line - 1;
                if (slot->hash == hash && a->starts[first + 1] - a->starts[first] == size &&
                    !memcmp(a->text + a->starts[first], text, size)) {
                    side->ids[line] = first;
                    break;
                }
            }
            if (second && side->ids[line] != NOWHERE)
                work->seen_y[side->ids[line]] = 1;
        }
    }
    for (uint32_t line = 0; line < a->count; line++)
        if (work->seen_y[a->ids[line]]) {
            a->common[a->commons] = a->ids[line];
            a->where[a->commons++] = line;
        } else
            a->changed[line] = 1;
    for (uint32_t line = 0; line < b->count; line++)
        if (b->ids[line] != NOWHERE) {
            b->common[b->commons] = b->ids[line];
            b->where[b->commons++] = line;
        } else
            b->changed[line] = 1;
    memset(work->seen_y, 0, (uint64_t)a->count + 1);
    return 1;
}

static int push(struct work *work, uint32_t x0, uint32_t x1, uint32_t y0, uint32_t y1, uint32_t level)
{
    if (x0 == x1 && y0 == y1)
        return 1;
    if (work->waiting == work->room) {
        uint64_t room = work->room ? 2 * work->room : 256;
        struct box *boxes = realloc(work->boxes, room * sizeof *boxes);
        if (!boxes)
            return 0;
        work->boxes = boxes;
        work->room = room;
    }
    work->boxes[work->waiting++] = (struct box){x0, x1, y0, y1, level};
    return 1;
}

static void mark_changed(struct work *work, const struct box *box)
{
    for (uint32_t x = box->x0; x < box->x1; x++)
        work->a.changed[work->a.where[x]] = 1;
    for (uint32_t y = box->y0; y < box->y1; y++)
        work->b.changed[work->b.where[y]] = 1;
}

/* Split a box at the lines that occur once on each side of it: the longest sequence that is in order on both. Return
 * the number of boxes pushed, 0 if there is no such line, -1 if out of memory. */
static int split_at_anchors(struct work *work, const struct box *box)
{
    const uint32_t *x = work->a.common, *y = work->b.common;
    uint32_t pairs = 0, longest = 0;
    for (uint32_t at = box->x0; at < box->x1; at++)
        work->seen_x[x[at]] += work->seen_x[x[at]] < 2;
    for (uint32_t at = box->y0; at < box->y1; at++) {
        work->seen_y[y[at]] += work->seen_y[y[at]] < 2;
        work->place[y[at]] = at;
    }
    for (uint32_t at = box->x0; at < box->x1; at++)
        if (work->seen_x[x[at]] == 1 && work->seen_y[x[at]] == 1)
            work->pairs[pairs++] = at;
    for (uint32_t pair = 0; pair < pairs; pair++) {
        uint32_t to = work->place[x[work->pairs[pair]]], low = 0, high = longest;
        while (low < high) { /* the longest sequence that ends before this position */
            uint32_t middle = low + (high - low) / 2;
            if (work->place[x[work->pairs[work->tails[middle]]]] < to)
                low = middle + 1;
            else
                high = middle;
        }
        work->before[pair] = low ? work->tails[low - 1] : NOWHERE;
        work->tails[low] = pair;
        longest += low == longest;
    }
    int ok = 1;
    uint32_t x1 = box->x1, y1 = box->y1;
    for (uint32_t pair = longest ? work->tails[longest - 1] : NOWHERE; ok && pair != NOWHERE; pair = work->before[pair]) {
        uint32_t at = work->pairs[pair], to = work->place[x[at]];
        ok = push(work, at + 1, x1, to + 1, y1, box->level + 1);
        x1 = at;
        y1 = to;
    }
    if (longest)
        ok = ok && push(work, box->x0, x1, box->y0, y1, box->level + 1);
    for (uint32_t at = box->x0; at < box->x1; at++)
        work->seen_x[x[at]] = 0;
    for (uint32_t at = box->y0; at < box->y1; at++)
        work->seen_y[y[at]] = 0;
    return ok ? (int)(longest > 0) : -1;
}

/* Find a point on a short path from one corner of a box to the other. */
static void find_middle(const struct work *work, const struct box *box, int32_t *at_x, int32_t *at_y)
{
    const uint32_t *x = work->a.common, *y = work->b.common;
    int32_t x0 = (int32_t)box->x0, x1 = (int32_t)box->x1, y0 = (int32_t)box->y0, y1 = (int32_t)box->y1;
    int32_t *fd = work->forward + work->b.commons + 1, *bd = work->backward + work->b.commons + 1; /* by diagonal x-y */
    int32_t lowest = x0 - y1, highest = x1 - y0, start = x0 - y0, end = x1 - y1;
    int32_t fmin = start, fmax = start, bmin = end, bmax = end;
    int odd = (start - end) & 1;
    fd[start] = x0;
    bd[end] = x1;
    for (int32_t cost = 1;; cost++) {
        if (fmin > lowest)
            fd[--fmin - 1] = -1;
        else
            ++fmin;
        if (fmax < highest)
            fd[++fmax + 1] = -1;
        else
            --fmax;
        for (int32_t d = fmax; d >= fmin; d -= 2) {
            int32_t i = fd[d - 1] < fd[d + 1] ? fd[d + 1] : fd[d - 1] + 1, j = i - d;
            while (i < x1 && j < y1 && x[i] == y[j])
                i++, j++;
            fd[d] = i;
            if (odd && bmin <= d && d <= bmax && bd[d] <= i) {
                *at_x = i;
                *at_y = j;
                return;
            }
        }
        if (bmin > lowest)
            bd[--bmin - 1] = INT32_MAX;
        else
            ++bmin;
        if (bmax < highest)
            bd[++bmax + 1] = INT32_MAX;
        else
            --bmax;
        for (int32_t d = bmax; d >= bmin; d -= 2) {
            int32_t i = bd[d - 1] < bd[d + 1] ? bd[d - 1] : bd[d + 1] - 1, j = i - d;
            while (x0 < i && y0 < j && x[i - 1] == y[j - 1])
                i--, j--;
            bd[d] = i;
            if (!odd && fmin <= d && d <= fmax && i <= fd[d]) {
                *at_x = i;
                *at_y = j;
                return;
            }
        }
        if (cost < COST)
            continue;
        int64_t best = -1; /* too far apart: take the furthest point of the search from the start */
        for (int32_t d = fmax; d >= fmin; d -= 2) {
            int32_t i = fd[d] < x1 ? fd[d] : x1, j = i - d;
            if (j > y1) {
                i = y1 + d;
                j = y1;
            }
            if (i >= x0 && j >= y0 && (int64_t)i + j > best) {
                best = (int64_t)i + j;
                *at_x = i;
                *at_y = j;
            }
        }
        return;
    }
}

static int solve(struct work *work)
{
    const uint32_t *x = work->a.common, *y = work->b.common;
    uint64_t least = work->a.commons < work->b.commons ? work->a.commons : work->b.commons;
    uint64_t diagonals = (uint64_t)work->a.commons + work->b.commons + 3;
    work->pairs = malloc((least + 1) * sizeof *work->pairs);
    work->tails = malloc((least + 1) * sizeof *work->tails);
    work->before = malloc((least + 1) * sizeof *work->before);
    work->forward = malloc(diagonals * sizeof *work->forward);
    work->backward = malloc(diagonals * sizeof *work->backward);
    if (!work->pairs || !work->tails || !work->before || !work->forward || !work->backward)
        return 0;
    if (!push(work, 0, work->a.commons, 0, work->b.commons, 0))
        return 0;
    while (work->waiting) {
        struct box box = work->boxes[--work->waiting];
        while (box.x0 < box.x1 && box.y0 < box.y1 && x[box.x0] == y[box.y0])
            box.x0++, box.y0++;
        while (box.x0 < box.x1 && box.y0 < box.y1 && x[box.x1 - 1] == y[box.y1 - 1])
            box.x1--, box.y1--;
        if (box.x0 == box.x1 || box.y0 == box.y1) {
            mark_changed(work, &box);
            continue;
        }
        int split = box.level < LEVELS ? split_at_anchors(work, &box) : 0;
        if (split < 0)
            return 0;
        if (split)
            continue;
        int32_t i = -1, j = -1;
        find_middle(work, &box, &i, &j);
        uint32_t to_x = (uint32_t)i, to_y = (uint32_t)j;
        int is_inside = i >= 0 && j >= 0 && to_x >= box.x0 && to_x <= box.x1 && to_y >= box.y0 && to_y <= box.y1;
        int is_corner = (to_x == box.x0 && to_y == box.y0) || (to_x == box.x1 && to_y == box.y1);
        if (!is_inside || is_corner) {
            mark_changed(work, &box);
            continue;
        }
        if (!push(work, to_x, box.x1, to_y, box.y1, LEVELS) || !push(work, box.x0, to_x, box.y0, to_y, LEVELS))
            return 0;
    }
    return 1;
}

/* For each edit: first line and the one after the last in a, in b, then the same as byte offsets in the texts. */
static int64_t list_edits(const struct work *work, uint64_t **edits)
{
    const struct side *a = &work->a, *b = &work->b;
    for (uint64_t *out = 0;;) { /* counted first, then written */
        uint64_t count = 0;
        for (uint32_t i = 0, j = 0; i < a->count || j < b->count;) {
            uint32_t i0 = i, j0 = j;
            while (i < a->count && a->changed[i])
                i++;
            while (j < b->count && b->changed[j])
                j++;
            if (i == i0 && j == j0) {
                i++, j++;
                continue;
            }
            if (out) {
                uint64_t *edit = out + 8 * count;
                edit[0] = i0, edit[1] = i, edit[2] = j0, edit[3] = j;
                edit[4] = a->starts[i0], edit[5] = a->starts[i], edit[6] = b->starts[j0], edit[7] = b->starts[j];
            }
            count++;
        }
        if (out) {
            *edits = out;
            return (int64_t)count;
        }
        out = malloc((count + 1) * 8 * sizeof *out);
        if (!out)
            return -1;
    }
}

static void forget(struct side *side)
{
    free(side->starts);
    free(side->ids);
    free(side->changed);
    free(side->common);
    free(side->where);
}

/* Return the number of edits, which the caller frees with workstead_forget_1; -1 if out of memory. Texts < 2 GiB. */
int64_t workstead_edits_1(const uint8_t *a, uint64_t a_size, const uint8_t *b, uint64_t b_size, uint64_t seed,
                       uint64_t **edits)
{
    struct work work = {.a = {.text = a, .size = a_size}, .b = {.text = b, .size = b_size}};
    int64_t count = -1;
    if (index_lines(&work.a) && index_lines(&work.b) && classify(&work, seed) && solve(&work))
        count = list_edits(&work, edits);
    forget(&work.a);
    forget(&work.b);
    free(work.slots);
    free(work.seen_x);
    free(work.seen_y);
    free(work.place);
    free(work.pairs);
    free(work.tails);
    free(work.before);
    free(work.forward);
    free(work.backward);
    free(work.boxes);
    return count;
}

void workstead_forget_1(uint64_t *edits)
{
    free(edits);
}
