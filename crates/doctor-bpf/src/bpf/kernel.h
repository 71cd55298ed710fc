/*
 * The few kernel types that the programs read, with only the fields that they use.
 *
 * The loader fills in the real offsets of the fields, from the BTF of the running kernel
 * (/sys/kernel/btf/vmlinux). So a single object runs on every kernel, and the repository does not need the
 * 100,000 lines that `bpftool btf dump` would write, which are right for a single kernel only.
 */
#pragma once

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_STACK_TRACE = 7,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_F_NO_PREALLOC = 1 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs {
	unsigned long bp, di, dx, si, orig_ax, ip, sp;
};
struct thread_info {
	__u32 cpu;
};
struct qstr {
	const unsigned char *name;
};
struct dentry {
	struct qstr d_name;
};
struct path {
	struct dentry *dentry;
};
struct inode {
	unsigned short i_mode;
};
struct file {
	struct inode *f_inode;
	struct path f_path;
	void *private_data;
};
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};
struct files_struct {
	struct fdtable *fdt;
};
struct sock_common {
	__be32 skc_daddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
};
struct sock {
	struct sock_common __sk_common;
};
struct socket {
	struct sock *sk;
};
struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	int exit_state;
	int on_cpu;
	int pid;
	int tgid;
	__u64 start_time;
	struct files_struct *files;
};
struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));
struct bpf_perf_event_data;

#pragma clang attribute pop

/* The context of a program that iterates over tasks: pointers at fixed offsets. */
struct bpf_iter__task {
	void *meta;
	struct task_struct *task;
};
