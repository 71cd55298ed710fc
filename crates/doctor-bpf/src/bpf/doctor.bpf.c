/*
 * Time of a process: every switch and system call of its threads, and samples of each CPU.
 *
 * The programs add up times by thread, call and descriptor; they send no events. Blocked time, time in the
 * run queue and time on a CPU are separate: a sleep ends when the thread is woken, and the time until it runs
 * is run queue. A switch without a sleep (preemption) is run queue from its start.
 *
 * A thread that sleeps when the programs are attached makes no event until it wakes, and a server may stand
 * still for seconds. So all threads are visited once at that time; the registers of its entry to the kernel
 * tell which call a thread is in.
 *
 * The stack of a sleep is taken when its system call ends, not when it begins: only then it is known whether
 * the sleep was long enough to be worth 2 us, and the user's stack is the same.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "shared.h"

char LICENSE[] SEC("license") = "GPL";

/* The loader fills it in before it loads the programs; the verifier then knows the values. */
const volatile struct config config SEC(".rodata.config");

#define SHORT_SLEEP_NS 50000
#define IDLE_STACK_EVERY 16
#define IDLE_STACK_NS 50000000
#define EAGAIN 11
#define TASK_IS_DEAD 0x80 /* the kernel's TASK_DEAD, which is a macro */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct totals);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct call_key);
	__type(value, struct call);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sample_key);
	__type(value, __u64);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct wait_key);
	__type(value, struct wait);
} waits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct waker_key);
	__type(value, struct waker);
} wakers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(key_size, 4);
	__uint(value_size, 64 * 8);
	__uint(max_entries, 16384);
} kernel_stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STALLS_MAX);
	__type(key, __u32);
	__type(value, struct stall);
} stalls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TIME_SLOTS);
	__type(key, __u32);
	__type(value, struct time_slot);
} time_slots SEC(".maps");

static __always_inline struct totals *sums(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&totals, &zero);
}
#define ADD(field, n) __sync_fetch_and_add(&(field), n)
#define COUNT(field)                   \
	do {                           \
		struct totals *s = sums(); \
		if (s)                 \
			ADD(s->field, 1);  \
	} while (0)

/* Whether the window has ended: the loader may not be scheduled in time to detach the programs. */
static __always_inline bool is_over(__u64 now)
{
	__u32 zero = 0;
	struct control *c = bpf_map_lookup_elem(&control, &zero);
	return !c || now > c->until;
}

static __always_inline void count_stack(bool complete)
{
	struct totals *s = sums();
	if (!s)
		return;
	ADD(s->stacks, 1);
	if (complete)
		ADD(s->stacks_complete, 1);
}
static __always_inline void lost_stack(void)
{
	COUNT(lost_stacks);
}

#include "unwind.h"

/* Returns the state of a thread, created anew if there is none or if it is from before a pause. */
static __always_inline struct thread *thread_of(struct task_struct *task)
{
	__u32 zero = 0, tid = task->pid;
	struct control *now = bpf_map_lookup_elem(&control, &zero);
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	if (!now)
		return 0;
	if (t && t->epoch == now->epoch)
		return t;
	struct thread fresh = { .epoch = now->epoch, .nr = UNKNOWN_CALL, .fd = NO_FD };
	if (task->start_time >= now->since)
		fresh.nr = OUTSIDE_CALLS; /* its registers are a copy of its parent's, which is in clone */
	if (bpf_map_update_elem(&threads, &tid, &fresh, BPF_ANY))
		COUNT(lost_keys);
	return bpf_map_lookup_elem(&threads, &tid);
}

/* Records the file or socket behind a descriptor, which may be closed before a reader of /proc sees it. */
static __noinline int describe(struct call *c, __s32 fd)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **list = BPF_CORE_READ(table, fd);
	struct file *file = 0;
	if (!c || fd < 0 || (__u32)fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	if (bpf_probe_read_kernel(&file, sizeof(file), list + fd) || !file)
		return 0;
	c->mode = BPF_CORE_READ(file, f_inode, i_mode);
	if ((c->mode & 0170000) == 0140000) { /* S_IFSOCK */
		struct socket *socket = (struct socket *)BPF_CORE_READ(file, private_data);
		struct sock *sock = BPF_CORE_READ(socket, sk);
		c->family = BPF_CORE_READ(sock, __sk_common.skc_family);
		c->state = BPF_CORE_READ(sock, __sk_common.skc_state);
		c->local_port = BPF_CORE_READ(sock, __sk_common.skc_num);
		c->peer_port = __builtin_bswap16(BPF_CORE_READ(sock, __sk_common.skc_dport));
		c->peer_ip4 = BPF_CORE_READ(sock, __sk_common.skc_daddr);
	} else {
		const unsigned char *name = BPF_CORE_READ(file, f_path.dentry, d_name.name);
		bpf_probe_read_kernel_str(c->name, sizeof(c->name), name);
	}
	return 0;
}

static __always_inline struct call *call_of(__u32 tid, __s32 nr, __s32 fd)
{
	struct call_key key = { tid, nr, fd };
	struct call *c = bpf_map_lookup_elem(&calls, &key);
	if (c)
		return c;
	struct call fresh = {};
	if (!bpf_map_update_elem(&calls, &key, &fresh, BPF_ANY))
		return bpf_map_lookup_elem(&calls, &key);
	COUNT(lost_calls);
	key.fd = FD_OTHERS;
	bpf_map_update_elem(&calls, &key, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&calls, &key);
}

/* A wait for a mutex, as in `is_lock_wait` of the loader's caller: glibc and Rust's std wait on value 2. */
static __always_inline bool is_lock_wait(__u64 operation, __u32 value)
{
	switch (operation & 0x7f) {
	case 0: /* FUTEX_WAIT */
	case 9: /* FUTEX_WAIT_BITSET */
		return value == 2;
	case 6:	 /* FUTEX_LOCK_PI */
	case 13: /* FUTEX_LOCK_PI2 */
		return true;
	}
	return false;
}

static __always_inline __u8 flags_of(long nr)
{
	return nr >= 0 && nr < CALLS_MAX ? config.call_flags[nr & (CALLS_MAX - 1)] : 0;
}

static __always_inline void begin_call(struct thread *t, struct pt_regs *regs, long nr, __u64 now)
{
	__u8 flags = flags_of(nr);
	t->nr = nr;
	t->fd = flags & CALL_ON_FD ? (__s32)regs->di : NO_FD;
	t->address = 0;
	if (flags & CALL_FUTEX) {
		t->address = regs->di;
		if (is_lock_wait(regs->si, (__u32)regs->dx))
			t->fd = FD_LOCK;
	}
	t->blocked_ns = t->queued_ns = 0;
	t->sleeps = t->sleeps_short = 0;
	t->in_call = 1;
	t->call_at = now;
}

/* Finds the call that an off-CPU task began before the programs were attached; it counts from now on. */
static __always_inline void find_call(struct thread *t, struct task_struct *task, __u64 now)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	long nr = regs->orig_ax;
	if (nr >= 0)
		begin_call(t, regs, nr, now);
	else
		t->nr = OUTSIDE_CALLS; /* a page fault, or an interrupt of user code */
}

static __always_inline void went_off(struct task_struct *task, bool preempted, __u64 now)
{
	struct thread *t = thread_of(task);
	if (!t)
		return;
	if (t->nr == UNKNOWN_CALL)
		find_call(t, task, now);
	t->off_at = now;
	t->woken_at = preempted ? now : 0;
}

/* Splits time without a CPU among its slots. */
static __noinline int spread(__u64 from, __u64 to, bool queued)
{
	int i;
	if (from < config.begin_ns || !config.slot_ns)
		return 0;
	__u32 slot = (from - config.begin_ns) / config.slot_ns;
	bpf_for(i, 0, TIME_SLOTS)
	{
		__u64 end = config.begin_ns + (slot + 1) * config.slot_ns;
		struct time_slot *s = bpf_map_lookup_elem(&time_slots, &slot);
		if (!s || from >= to)
			break;
		__u64 part = (to < end ? to : end) - from;
		if (queued)
			ADD(s->queued_ns, part);
		else
			ADD(s->blocked_ns, part);
		from = end;
		slot++;
	}
	return 0;
}

/* Whether a thread sleeps for want of work, as far as it is known here. */
static __always_inline bool is_idle(struct thread *t, __u32 tid)
{
	__u8 flags = flags_of(t->nr);
	if (t->fd == FD_LOCK || !t->in_call)
		return false;
	if (!(flags & CALL_RECEIVE))
		return flags & CALL_IDLE;
	struct call_key key = { tid, t->nr, t->fd };
	struct call *c = bpf_map_lookup_elem(&calls, &key);
	return !c || (c->mode & 0170000) != 0100000; /* S_IFREG */
}

static __always_inline void came_on(struct task_struct *task, __u64 now)
{
	__u32 tid = task->pid;
	struct thread *t = thread_of(task);
	if (!t || !t->off_at)
		return;
	__u64 off = now - t->off_at;
	__u64 queued = t->woken_at ? now - t->woken_at : 0;
	if (queued > off)
		queued = off;
	bool voluntary = t->woken_at != t->off_at;
	bool brief = voluntary && off - queued < SHORT_SLEEP_NS;
	__u64 slept_until = now - queued;
	if (!brief && off > queued && !is_idle(t, tid))
		spread(t->off_at, slept_until, false);
	if (queued >= SHORT_SLEEP_NS)
		spread(slept_until, now, true);
	t->turn_blocked_ns += off - queued;
	t->turn_queued_ns += queued;
	t->off_at = 0;
	if (t->in_call) {
		t->blocked_ns += off - queued;
		t->queued_ns += queued;
		t->sleeps += voluntary;
		t->sleeps_short += brief;
		return;
	}
	struct call *c = call_of(tid, t->nr, NO_FD);
	if (!c)
		return;
	c->blocked_ns += off - queued;
	c->queued_ns += queued;
	c->sleeps += voluntary;
	c->sleeps_short += brief;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	bool leaves = prev->tgid == config.tgid, comes = next->tgid == config.tgid;
	if (!leaves && !comes)
		return 0;
	__u64 now = bpf_ktime_get_ns();
	if (is_over(now))
		return 0;
	if (leaves && prev_state & TASK_IS_DEAD) {
		__u32 tid = prev->pid;
		bpf_map_delete_elem(&threads, &tid); /* sched_process_exit came before; this is not a sleep */
	} else if (leaves) {
		went_off(prev, preempt || prev_state == 0, now);
	}
	if (comes)
		came_on(next, now);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	if (task->tgid != config.tgid)
		return 0;
	__u32 tid = task->pid;
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	if (!t || !t->off_at || t->woken_at)
		return 0;
	__u64 now = bpf_ktime_get_ns();
	if (is_over(now))
		return 0;
	t->woken_at = now;
	struct task_struct *by = bpf_get_current_task_btf();
	struct waker_key key = { tid, by->pid, t->nr };
	struct waker *w = bpf_map_lookup_elem(&wakers, &key);
	if (!w) {
		struct waker fresh = { .tgid = by->tgid };
		bpf_get_current_comm(fresh.name, sizeof(fresh.name));
		if (bpf_map_update_elem(&wakers, &key, &fresh, BPF_ANY))
			COUNT(lost_keys);
		w = bpf_map_lookup_elem(&wakers, &key);
	}
	if (!w)
		return 0;
	ADD(w->count, 1);
	ADD(w->slept_ns, now - t->off_at);
	if (bpf_core_field_exists(task->thread_info.cpu) && task->thread_info.cpu != bpf_get_smp_processor_id())
		ADD(w->across, 1);
	return 0;
}

static __always_inline void keep_stall(struct thread *t, __u32 tid, __u64 now)
{
	struct totals *all = sums();
	if (!all)
		return;
	__u32 index = __sync_fetch_and_add(&all->stalls, 1);
	struct stall *s = bpf_map_lookup_elem(&stalls, &index);
	if (!s)
		return;
	s->at_ns = t->turn_at;
	s->length_ns = now - t->turn_at;
	s->blocked_ns = t->turn_blocked_ns;
	s->queued_ns = t->turn_queued_ns;
	s->longest_ns = t->longest_ns;
	s->tid = tid;
	s->longest_nr = t->longest_nr;
	s->longest_fd = t->longest_fd;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(on_enter, struct pt_regs *regs, long nr)
{
	struct task_struct *task = bpf_get_current_task_btf();
	if (task->tgid != config.tgid)
		return 0;
	__u64 now = bpf_ktime_get_ns();
	if (is_over(now))
		return 0;
	struct thread *t = thread_of(task);
	if (!t)
		return 0;
	begin_call(t, regs, nr, now);
	if (t->turn_at && flags_of(nr) & CALL_POLL) {
		if (now - t->turn_at >= config.stall_from_ns)
			keep_stall(t, task->pid, now);
		t->turn_at = 0;
	}
	return 0;
}

/* Records the wait of a call whose sleep was long enough. */
static __always_inline void take_wait(struct thread *t, __u32 tid, __u8 flags)
{
	__u64 slept = t->blocked_ns, count = 1;
	if (slept < config.stack_from_ns)
		return;
	if (flags & CALL_IDLE && t->fd != FD_LOCK) {
		t->idle_ns += slept;
		t->idle_count++;
		if (slept < IDLE_STACK_NS && t->idle_count % IDLE_STACK_EVERY)
			return;
		slept = t->idle_ns;
		count = t->idle_count;
		t->idle_ns = 0;
		t->idle_count = 0;
	}
	struct wait_key key = { .tid = tid, .nr = t->nr, .fd = t->fd, .address = t->address };
	key.user_stack = take_user_stack(SCRATCH_CALL);
	struct wait *w = bpf_map_lookup_elem(&waits, &key);
	if (!w) {
		struct wait fresh = {};
		if (bpf_map_update_elem(&waits, &key, &fresh, BPF_ANY))
			COUNT(lost_keys);
		w = bpf_map_lookup_elem(&waits, &key);
	}
	if (!w)
		return;
	ADD(w->count, count);
	ADD(w->blocked_ns, slept);
	if (t->blocked_ns > w->longest_ns)
		w->longest_ns = t->blocked_ns;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_exit, struct pt_regs *regs, long result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	if (task->tgid != config.tgid)
		return 0;
	__u64 now = bpf_ktime_get_ns();
	if (is_over(now))
		return 0;
	__u32 tid = task->pid;
	struct thread *t = thread_of(task);
	if (!t || !t->in_call) {
		if (t)
			t->nr = OUTSIDE_CALLS;
		return 0;
	}
	__u64 wall = now - t->call_at;
	__u8 flags = flags_of(t->nr);
	struct call *c = call_of(tid, t->nr, t->fd);
	if (c) {
		if (!c->count && t->fd >= 0 && !(flags & CALL_CLOSE))
			describe(c, t->fd);
		/* Plain sums: only this thread writes the row. An atomic sum costs as much as all the rest. */
		c->count++;
		c->wall_ns += wall;
		c->blocked_ns += t->blocked_ns;
		c->queued_ns += t->queued_ns;
		c->sleeps += t->sleeps;
		c->sleeps_short += t->sleeps_short;
		if (result > 0)
			c->bytes += result;
		else if (result == -EAGAIN)
			c->would_block++;
		else if (result < 0)
			c->errors++;
		if (wall > c->longest_ns)
			c->longest_ns = wall;
	}
	take_wait(t, tid, flags);
	if (flags & CALL_POLL) {
		t->turn_at = now;
		t->turn_blocked_ns = t->turn_queued_ns = t->longest_ns = 0;
	} else if (wall > t->longest_ns) {
		t->longest_ns = wall;
		t->longest_nr = t->nr;
		t->longest_fd = t->fd;
	}
	t->in_call = 0;
	t->nr = OUTSIDE_CALLS;
	t->fd = NO_FD;
	return 0;
}

/* Runs once for each task of the machine, right after the other programs were attached. */
SEC("iter/task")
int on_task(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	__u32 zero = 0;
	struct control *c = bpf_map_lookup_elem(&control, &zero);
	if (!task || !c || task->tgid != config.tgid || !task->__state || task->exit_state)
		return 0;
	if (bpf_core_field_exists(task->on_cpu) && task->on_cpu)
		return 0; /* about to sleep, which will be an event */
	__u32 tid = task->pid;
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	if (t && t->epoch == c->epoch)
		return 0; /* it has made an event since */
	__u64 now = bpf_ktime_get_ns();
	struct thread asleep = { .epoch = c->epoch, .fd = NO_FD, .off_at = now };
	find_call(&asleep, task, now);
	bpf_map_update_elem(&threads, &tid, &asleep, t ? BPF_ANY : BPF_NOEXIST); /* fails if it woke since */
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_end, struct task_struct *task)
{
	__u32 tid = task->pid;
	if (task->tgid == config.tgid)
		bpf_map_delete_elem(&threads, &tid);
	return 0;
}

SEC("perf_event")
int on_sample(struct bpf_perf_event_data *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 now = bpf_ktime_get_ns();
	if (task->tgid != config.tgid || is_over(now))
		return 0;
	__u32 tid = task->pid, slot = config.slot_ns ? (now - config.begin_ns) / config.slot_ns : 0;
	struct time_slot *s = bpf_map_lookup_elem(&time_slots, &slot);
	if (s)
		ADD(s->samples, 1);
	struct sample_key key = { .tid = tid, .nr = OUTSIDE_CALLS, .fd = NO_FD };
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);
	if (t && t->in_call) {
		key.nr = t->nr;
		key.fd = t->fd;
	}
	if (t && t->turn_at && now - t->turn_at >= config.stall_from_ns)
		key.late = 1;
	key.kernel_stack = bpf_get_stackid(context, &kernel_stacks, 0);
	key.user_stack = take_user_stack(SCRATCH_SAMPLE);
	__u64 one = 1, *count = bpf_map_lookup_elem(&samples, &key);
	if (count)
		ADD(*count, 1);
	else if (bpf_map_update_elem(&samples, &key, &one, BPF_ANY))
		COUNT(lost_keys);
	return 0;
}
