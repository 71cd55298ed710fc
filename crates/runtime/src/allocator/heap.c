// What the calling thread does with its own heap: see allocator.rs and spans.rs. Compiled against the headers of the very allocator that
// is linked.

#include "mimalloc.h"
#include "mimalloc/internal.h"
#include "mimalloc/prim.h"

// Takes back what others have freed. A look through all pages, which the allocator has after so many requests, would find no more of
// this thread's than a few pages that are empty and kept, so it is put off.
void evenkeel_settle(void) {
  mi_heap_t *heap = mi_prim_get_default_heap();
  if (!mi_heap_is_initialized(heap)) return;
  _mi_heap_delayed_free_partial(heap);
  heap->generic_collect_count = 0;
}

// A walk through the free spans of the thread's segments, in pieces.
typedef struct {
  mi_slice_t *span; // the next one, unless it has gone meanwhile; null where the walk has not begun
  size_t slices;    // its size
  size_t queue;     // of those by size, the one that it is in
  size_t left;      // spans that may still be visited: queues change, and are begun anew; then what is left is left
} place_t;

// Whether the memory in which the span is described stays readable, whatever becomes of the span. Arenas stay.
static bool can_be_returned_to(const mi_slice_t *span) {
  return _mi_ptr_segment(span)->memid.memkind == MI_MEM_ARENA;
}

// Whether that is still a free span of this thread's. Its segment may have been given back, and be anything by now: it is this thread's
// if it says so, since only this thread writes its number there, and knows the cookie if it is a segment at all.
static bool is_still_there(const mi_heap_t *heap, const place_t *place) {
  const mi_slice_t *span = place->span;
  mi_segment_t *segment = _mi_ptr_segment(span);
  if (mi_atomic_load_acquire(&segment->thread_id) != heap->thread_id) return false;
  if (segment->cookie != _mi_ptr_cookie(segment)) return false;
  if (span < segment->slices || span >= segment->slices + segment->slice_entries) return false;
  if (span->slice_count != place->slices || span->slice_offset != 0 || span->block_size != 0) return false;
  // What is left of a span that has become a part of another one is linked with nothing.
  if (span->prev == NULL) return heap->tld->segments.spans[place->queue].first == span;
  return span->prev->next == span;
}

// Gives back what is unused of the segments of one free span after the other, until `is_over`, which is asked after each. Returns
// whether there is more.
bool evenkeel_give_back(place_t *place, bool (*is_over)(void *), void *argument) {
  mi_heap_t *heap = mi_prim_get_default_heap();
  if (!mi_heap_is_initialized(heap)) return false;
  mi_segments_tld_t *own = &heap->tld->segments;
  mi_slice_t *span = place->span;
  if (span == NULL) {
    _mi_heap_collect_retired(heap, true); // at most a page for each size of blocks
    place->queue = 0;
    place->left = own->count * MI_SLICES_PER_SEGMENT;
    span = own->spans[0].first;
  } else if (!is_still_there(heap, place)) {
    span = own->spans[place->queue].first; // those that were visited are done, and quickly passed over
  }
  for (bool visited = false;; visited = true) {
    while (span == NULL) {
      if (place->queue >= MI_SEGMENT_BIN_MAX) return false;
      place->queue++;
      span = own->spans[place->queue].first;
    }
    if (place->left == 0) return false;
    if (visited && can_be_returned_to(span) && is_over(argument)) {
      place->span = span;
      place->slices = span->slice_count;
      return true;
    }
    place->left--;
    _mi_segment_collect(_mi_ptr_segment(span), true); // changes no queue
    span = span->next;
  }
}

// Gives back at once what belongs to no thread.
void evenkeel_give_back_shared(void) {
  mi_heap_t *heap = mi_prim_get_default_heap();
  if (mi_heap_is_initialized(heap)) _mi_abandoned_collect(heap, true, &heap->tld->segments);
  _mi_arenas_collect(true);
}
