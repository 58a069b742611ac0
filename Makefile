# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnic: `make run` on a fresh Debian 12 or 13 machine is all one needs. `make help` lists the rest.
#
# KDIR=<built kernel tree>  use that kernel instead of the one the setup builds
# QEMU=<program>            use that QEMU (10.1 or newer)
# T=<part of a name>        make test, make fuzz: only tests, or targets, whose name contains it; test: or T=this,that
# W=<workloads>             make chaos: these workloads
# MINUTES=<number>          make fuzz: minutes for each target

export PATH := /usr/bin:/bin:/usr/sbin:/sbin:$(PATH)
export KDIR QEMU VRNIC_KERNEL

LAB := tools/target/release/vrnic-lab
setup = $(shell sed -n 's/^$(1)=//p' build/setup.env 2>/dev/null)
# Expanded when a recipe runs, after the setup has written build/setup.env.
kdir = $(or $(KDIR),$(call setup,VRNIC_KDIR))
kbuild = LIBCLANG_PATH=$(call setup,VRNIC_LIBCLANG) $(MAKE) --no-print-directory -C $(kdir) \
	CC=$(call setup,VRNIC_KERNEL_CC) BINDGEN=$(call setup,VRNIC_BINDGEN) RUSTC=/usr/bin/rustc

.PHONY: help run shell attach test series test-debug test-races fuzz chaos bench check build module kunit-module test-modules userspace manual setup clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

run: build ## set up, build, boot two VMs, run RDMA programs, print one table
	$(LAB) run

shell: build ## the same two VMs with a prompt in each
	$(LAB) shell

attach: ## join this terminal to VM=a or VM=b of a running `make shell`
	$(LAB) attach --vm $(or $(VM),a)

test: build kunit-module test-modules ## all tests: host, KUnit in a VM, VM tests
	$(LAB) test $(TEST_ARGS) $(if $(T),--only $(T))

# The module is built for that kernel; the next command without it builds for the usual one again.
test-debug: ## KUnit and VM tests on a kernel with KASAN, UBSAN, lockdep, kmemleak; takes hours
	$(MAKE) VRNIC_KERNEL=debug TEST_ARGS="--guests --out build/test-debug" test

test-races: ## KUnit and VM tests on a kernel with KCSAN; takes hours
	$(MAKE) VRNIC_KERNEL=races TEST_ARGS="--guests --out build/test-races" test

fuzz: setup ## search for hostile bytes that break something, 30 minutes each (MINUTES=n, T=target)
	@bash tools/fuzz/run.sh all "$(T)" $(MINUTES)

chaos: build ## run workloads under each fault, judge how they take it: W='pingpong rping' (default: all)
	$(LAB) chaos $(W)

bench: build ## measure the device alone, and VMs beside rxe; tables, build/bench/report.json, charts
	$(LAB) bench

check: setup ## rustfmt, clippy, docs and file rules, all without a warning
	@bash tools/setup/check.sh

setup: ## host packages, toolchain, kernel, QEMU, guest image (quick when present)
	@bash tools/setup/setup.sh

build: setup module userspace ## kernel module and userspace

# Each build of the module has a copy of the sources of its own.
define build-module
	@bash tools/setup/module-sources.sh build/$(1)
	+@$(kbuild) M=$(CURDIR)/build/$(1) $(2) $(if $(V),V=$(V)) modules
endef

module: setup ## build/module/vrnic.ko
	$(call build-module,module)

kunit-module: setup
	$(call build-module,kunit,CONFIG_INFINIBAND_VRNIC_KUNIT_TEST=y)

test-modules: setup # users of RDMA devices inside the kernel, for tests/vm
	@mkdir -p build && rsync -rt tests/kernel/ build/test-modules
	+@$(kbuild) M=$(CURDIR)/build/test-modules $(if $(V),V=$(V)) modules

userspace: setup ## vrnicd, the provider (build/provider), the test programs and the lab
	cd tools && cargo build --release --workspace
	bash tools/libvrnic/build.sh build/provider

# CHECK=m, y: the result is built too; CHECK=all: each commit. SIGNOFF=1: git config says who signs.
series: setup ## build/series: the kernel side as patches for Linux 7.3 (CHECK=m, CHECK=y, CHECK=all: build them)
	@bash tools/series/series.sh $(if $(SIGNOFF),--signoff)
	@$(if $(CHECK),bash tools/series/$(if $(filter all,$(CHECK)),check.sh,build.sh $(CHECK)))

manual: userspace ## build/manual: man pages, completions for bash, zsh and fish
	for program in vrnicd vrnicctl vrnic-lab vrnic-replay; do tools/target/release/$$program write-manual build/manual || exit; done

clean: ## remove what was built here (the cache outside the tree stays)
	rm -rf build
	cd tools && cargo clean
