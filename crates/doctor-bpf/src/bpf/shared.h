/*
 * The types that the programs and their loader exchange. `src/shared.rs` has the same types, and checks their
 * sizes.
 */
#pragma once

#define FRAMES_MAX 128 /* of a user stack; deeper stacks are cut at the outer end and marked */
#define MAPPINGS_MAX 512
#define CALLS_MAX 512 /* numbers of system calls; the largest of Linux 6.18 is 469 */

/* Bits of `config.call_flags`. */
#define CALL_ON_FD 1
#define CALL_FUTEX 2
#define CALL_IDLE 4 /* waits for work: only each 16th such sleep gets a stack */
#define CALL_CLOSE 8
#define CALL_POLL 16    /* waits for any of several descriptors; a loop's turn lies between two polls */
#define CALL_RECEIVE 32 /* waits for work, unless the descriptor is a file */

/* Values of `nr` that are not system calls. */
#define OUTSIDE_CALLS -1
#define UNKNOWN_CALL -2 /* not known yet whether the thread is in a call */

/* Values of `fd` that are not descriptors. */
#define NO_FD -1
#define FD_LOCK -2   /* a futex, and the wait is for a mutex */
#define FD_OTHERS -3 /* the table of calls is full */

struct config {
	__u32 tgid;
	__u32 mappings;
	__u64 stack_from_ns; /* minimum sleep that gets a stack */
	__u64 stall_from_ns; /* minimum turn of an event loop that is kept */
	__u64 begin_ns, slot_ns; /* of the time course */
	__u8 call_flags[CALLS_MAX];
};

/* State of a thread between two events. */
struct thread {
	__u32 epoch; /* of the last event; state from before a pause is void */
	__s32 nr, fd;
	__u32 in_call;
	__u32 sleeps, sleeps_short; /* from here to `address`: of the current call */
	__u64 call_at, blocked_ns, queued_ns;
	__u64 address;
	__u64 off_at, woken_at; /* 0: not off-CPU, not woken */
	__u64 idle_ns;		/* sleeps without a stack, to be added to the next sleep that gets one */
	__u32 idle_count;
	/* The turn of its event loop: start (0: unknown), sleeps and longest call. */
	__s32 longest_nr;
	__u64 turn_at, turn_blocked_ns, turn_queued_ns, longest_ns;
	__s32 longest_fd;
	__u32 pad;
};

struct call_key {
	__u32 tid;
	__s32 nr, fd;
};
struct call {
	__u64 count, wall_ns, blocked_ns, queued_ns, longest_ns;
	__u64 bytes, errors, would_block;
	__u64 sleeps, sleeps_short;
	/* Of the descriptor, at its first call. */
	__u32 mode;
	__u16 family, local_port, peer_port;
	__u8 state, pad;
	__u32 peer_ip4;
	char name[32];
};

struct sample_key {
	__u32 tid;
	__s32 nr, fd, kernel_stack;
	__u64 user_stack;
	__u32 late, pad; /* `late`: in a turn that has already taken `stall_from_ns` */
};
struct wait_key {
	__u32 tid;
	__s32 nr, fd;
	__u32 pad;
	__u64 address;
	__u64 user_stack;
};
struct wait {
	__u64 count, blocked_ns, longest_ns;
};

struct waker_key {
	__u32 tid, waker_tid;
	__s32 nr;
};
struct waker {
	__u64 count, across, slept_ns;
	__u32 tgid, pad;
	char name[16];
};

/* A turn of an event loop that took long. */
#define STALLS_MAX 1024
struct stall {
	__u64 at_ns, length_ns, blocked_ns, queued_ns, longest_ns;
	__u32 tid;
	__s32 longest_nr, longest_fd;
	__u32 pad;
};

/* Totals of one slot of time. */
#define TIME_SLOTS 4096
struct time_slot {
	__u64 samples, blocked_ns, queued_ns;
};

#define STACK_COMPLETE 0
#define STACK_CUT 1    /* deeper than FRAMES_MAX */
#define STACK_BROKEN 2 /* an address without rules, or unreadable memory */
struct user_stack {
	__u32 frames, end;
	__u64 pc[FRAMES_MAX];
};

struct mapping {
	__u64 start, end;
	__u64 bias; /* address in memory minus address in the file */
	__u32 first_row, rows;
	__u32 frame_pointers; /* no table: follow the chain of frame pointers */
	__u32 pad;
};

/* How to find the caller's frame for addresses from `pc` up to the next row's. */
#define CFA_UNKNOWN 0
#define CFA_SP 1
#define CFA_BP 2
#define CFA_PLT 3 /* the lazy stub: one more word after its push */
#define CFA_END 4 /* the outermost function */
struct row {
	__u32 pc;
	__s32 cfa_offset; /* some functions have more than 32 KiB on the stack */
	__s16 bp_offset;  /* from the CFA, if `bp_saved` */
	__u8 cfa;
	__u8 bp_saved;
};

struct control {
	__u32 epoch, pad;
	__u64 since, until; /* by the monotonic clock; later events are ignored */
};
struct totals {
	__u64 lost_calls, lost_stacks, lost_keys;
	__u64 stacks, stacks_complete;
	__u64 stalls; /* all; the first STALLS_MAX of them are kept */
};

/* For the probes on request. */
#define COUNTS_MAX 256
#define SLOTS 256
struct latency {
	__u64 begun, count, sum_ns, longest_ns;
	__u64 slots[SLOTS];
};

/* Of a static probe with two numbers: by the first number, how often it was met and the sum of the second. */
#define PROBE_TOTALS_MAX 64
struct probe_total {
	__u64 count, sum;
};
