// SPDX-License-Identifier: GPL-2.0

#include <linux/sched.h>

__rust_helper void rust_helper_get_task_comm(char *name, struct task_struct *task)
{
	strscpy_pad(name, task->comm, TASK_COMM_LEN);
}
