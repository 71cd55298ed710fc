/*
 * A walk of the user's stack by the rules of .eh_frame, inside the kernel.
 *
 * Distributions build without frame pointers, so the kernel's own walk ends at once. Compilers always emit
 * .eh_frame: for each address, the distance of the caller's frame from the stack or the frame pointer, and
 * where the frame pointer was saved. The loader flattens these rules into sorted rows. A step of the walk is
 * two binary searches and at most two reads of the user's memory. On x86-64 the return address is always
 * 8 bytes below the CFA.
 *
 * Memory that is not resident ends the walk: the programs may not fault.
 */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAPPINGS_MAX);
	__type(key, __u32);
	__type(value, struct mapping);
} mappings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* the loader sets the number of rows */
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct user_stack);
} user_stacks SEC(".maps");

/* A walk in progress. Calls and samples have an entry each: a sample may interrupt the end of a call. */
#define SCRATCH_CALL 0
#define SCRATCH_SAMPLE 1
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct user_stack);
} scratch SEC(".maps");

struct frame {
	__u64 pc, sp, bp;
};

static __noinline int find_mapping(__u64 pc)
{
	__u32 low = 0, high = config.mappings;
	int i;
	bpf_for(i, 0, 10) /* 2^9 is MAPPINGS_MAX */
	{
		if (low >= high)
			break;
		__u32 middle = (low + high) / 2;
		struct mapping *m = bpf_map_lookup_elem(&mappings, &middle);
		if (!m)
			return -1;
		if (pc < m->start)
			high = middle;
		else if (pc >= m->end)
			low = middle + 1;
		else
			return middle;
	}
	return -1;
}

/* The last row that begins at or before `pc`. */
static __noinline int find_row(__u32 first, __u32 count, __u32 pc)
{
	__u32 low = 0, high = count;
	int i;
	bpf_for(i, 0, 24) /* the loader accepts fewer than 2^23 rows */
	{
		if (low >= high)
			break;
		__u32 middle = (low + high) / 2, index = first + middle;
		struct row *row = bpf_map_lookup_elem(&rows, &index);
		if (!row)
			return -1;
		if (row->pc <= pc)
			low = middle + 1;
		else
			high = middle;
	}
	return low ? (int)(first + low - 1) : -1;
}

#define STEP_ON 0
#define STEP_END 1
#define STEP_BROKEN 2

static __always_inline int climb(struct frame *f, __u64 cfa, __u64 bp)
{
	__u64 pc = 0;
	if (cfa <= f->sp || bpf_probe_read_user(&pc, 8, (void *)(cfa - 8)))
		return STEP_BROKEN;
	if (!pc)
		return STEP_END;
	f->pc = pc;
	f->sp = cfa;
	f->bp = bp;
	return STEP_ON;
}

/* Steps from a frame to its caller's. `inner`: the innermost frame, whose pc is not a return address. */
static __always_inline int step(struct frame *f, bool inner)
{
	/* A call may be a function's last instruction: its return address then belongs to the next function. */
	__u64 pc = inner ? f->pc : f->pc - 1;
	int index = find_mapping(pc);
	if (index < 0)
		return STEP_BROKEN;
	__u32 key = index;
	struct mapping *m = bpf_map_lookup_elem(&mappings, &key);
	if (!m)
		return STEP_BROKEN;
	__u64 bp = f->bp;
	if (m->frame_pointers) {
		if (!f->bp)
			return STEP_END;
		if (bpf_probe_read_user(&bp, 8, (void *)f->bp))
			return STEP_BROKEN;
		return climb(f, f->bp + 16, bp);
	}
	int at = find_row(m->first_row, m->rows, (__u32)(pc - m->bias));
	if (at < 0)
		return STEP_BROKEN;
	key = at;
	struct row *row = bpf_map_lookup_elem(&rows, &key);
	if (!row)
		return STEP_BROKEN;
	__u64 cfa;
	switch (row->cfa) {
	case CFA_SP:
		cfa = f->sp + row->cfa_offset;
		break;
	case CFA_BP:
		cfa = f->bp + row->cfa_offset;
		break;
	case CFA_PLT:
		cfa = f->sp + 8 + ((pc & 15) >= 11 ? 8 : 0);
		break;
	case CFA_END:
		return STEP_END;
	default:
		return STEP_BROKEN;
	}
	if (row->bp_saved && bpf_probe_read_user(&bp, 8, (void *)(cfa + row->bp_offset)))
		return STEP_BROKEN;
	return climb(f, cfa, bp);
}

/* Stores the user stack of the current thread and returns its number, or 0 if there is none. */
static __noinline __u64 take_user_stack(__u32 slot)
{
	struct user_stack *stack = bpf_map_lookup_elem(&scratch, &slot);
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	if (!stack || !regs)
		return 0;
	struct frame f = { regs->ip, regs->sp, regs->bp };
	__u64 hash = 14695981039346656037ULL; /* FNV-1a over whole words */
	__u32 frames = 0;
	__u32 end = STACK_CUT;
	int i;
	bpf_for(i, 0, FRAMES_MAX)
	{
		stack->pc[i & (FRAMES_MAX - 1)] = f.pc;
		frames = i + 1;
		hash = (hash ^ f.pc) * 1099511628211ULL;
		int result = step(&f, i == 0);
		if (result == STEP_ON)
			continue;
		end = result == STEP_END ? STACK_COMPLETE : STACK_BROKEN;
		break;
	}
	stack->frames = frames;
	stack->end = end;
	count_stack(end == STACK_COMPLETE);
	hash |= 1; /* 0 means none */
	if (!bpf_map_lookup_elem(&user_stacks, &hash) && bpf_map_update_elem(&user_stacks, &hash, stack, BPF_ANY))
		lost_stack();
	return hash;
}
