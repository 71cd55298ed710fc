/*
 * Probes on request: how often the threads of a process meet a tracepoint or a function of the kernel, how
 * long calls of one function of the process take, and the numbers of its static probes.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "shared.h"

char LICENSE[] SEC("license") = "GPL";

/* The loader fills it in before it loads the programs. */
const volatile __u32 target SEC(".rodata.target");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct latency);
} latency SEC(".maps");

/* Calls that have not returned, by thread. A recursive function is timed once, at its outermost call. */
struct open_call {
	__u64 since, depth;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct open_call);
} open_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PROBE_TOTALS_MAX);
	__type(key, __u32);
	__type(value, struct probe_total);
} probe_totals SEC(".maps");

static __always_inline int count(__u32 which)
{
	struct task_struct *task = bpf_get_current_task_btf();
	if (task->tgid != target)
		return 0;
	__u64 *sum = bpf_map_lookup_elem(&counts, &which);
	if (sum)
		__sync_fetch_and_add(sum, 1);
	return 0;
}

SEC("raw_tp")
int on_tracepoint(void *context)
{
	return count(bpf_get_attach_cookie(context));
}

SEC("kprobe.multi")
int on_function(void *context)
{
	return count(bpf_get_attach_cookie(context));
}

SEC("uprobe")
int on_begin(void *context)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 tid = (__u32)id, zero = 0;
	if (id >> 32 != target)
		return 0;
	struct open_call *open = bpf_map_lookup_elem(&open_calls, &tid);
	struct latency *l = bpf_map_lookup_elem(&latency, &zero);
	if (l)
		__sync_fetch_and_add(&l->begun, 1);
	if (open) {
		open->depth++;
		return 0;
	}
	struct open_call fresh = { bpf_ktime_get_ns(), 1 };
	bpf_map_update_elem(&open_calls, &tid, &fresh, BPF_ANY);
	return 0;
}

/* Four slots for each power of two, by the two bits after the highest set bit. */
static __always_inline __u32 slot_of(__u64 ns)
{
	__u32 power = 0;
	__u64 rest = ns;
	for (int step = 32; step; step >>= 1) {
		if (rest >> step) {
			rest >>= step;
			power += step;
		}
	}
	if (power < 2)
		return ns;
	return power * 4 + ((ns >> (power - 2)) & 3);
}

SEC("uretprobe")
int on_return(void *context)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 tid = (__u32)bpf_get_current_pid_tgid(), zero = 0;
	struct open_call *open = bpf_map_lookup_elem(&open_calls, &tid);
	struct latency *l = bpf_map_lookup_elem(&latency, &zero);
	if (!open || !l || --open->depth)
		return 0;
	__u64 took = now - open->since;
	bpf_map_delete_elem(&open_calls, &tid);
	__sync_fetch_and_add(&l->count, 1);
	__sync_fetch_and_add(&l->sum_ns, took);
	if (took > l->longest_ns)
		l->longest_ns = took; /* of two threads at once, the shorter time may be lost, rarely the longer */
	__sync_fetch_and_add(&l->slots[slot_of(took) & (SLOTS - 1)], 1);
	return 0;
}

/* A static probe whose two numbers are in the registers of a function's first two arguments. */
SEC("uprobe")
int on_static_probe(struct pt_regs *registers)
{
	if (bpf_get_current_pid_tgid() >> 32 != target)
		return 0;
	__u32 which = registers->di;
	struct probe_total *t = bpf_map_lookup_elem(&probe_totals, &which);
	if (!t)
		return 0;
	__sync_fetch_and_add(&t->count, 1);
	__sync_fetch_and_add(&t->sum, registers->si);
	return 0;
}
