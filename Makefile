# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnic: `make run` on a fresh Debian 12 or 13 machine is all one needs. `make help` lists the rest.
#
# VRNIC_KERNEL=<name>       the VMs' kernel: stock (Debian's own), lab (with KUnit and failing allocations), debug, races
# KDIR=<built kernel tree>  that kernel instead
# QEMU=<program>            use that QEMU (10.1 or newer)
# T=<part of a name>        make test, make fuzz: only tests, or targets, whose name contains it; test: or T=this,that
# W=<workloads>             make chaos: these workloads
# MINUTES=<number>          make fuzz: minutes for each target

export PATH := /usr/bin:/bin:/usr/sbin:/sbin:$(PATH)
export KDIR QEMU VRNIC_KERNEL

# The parts of the setup and the builds run side by side; -j of the command line goes first.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell echo $$(($$(nproc) + 2)))
endif

LAB := tools/target/release/vrnic-lab
SETUP := bash tools/setup/setup.sh
KERNELS := stock lab debug races own
$(if $(filter-out $(KERNELS),$(VRNIC_KERNEL)),$(error VRNIC_KERNEL=$(VRNIC_KERNEL) is no kernel: set it to stock, lab, debug or races))
# The kernels that a command needs: the one that was asked for, else those it names.
kernels = $(if $(KDIR),own,$(or $(VRNIC_KERNEL),$(1)))

.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

run: build ## set up, build, boot two VMs, run RDMA programs, print one table
	$(LAB) run

shell: build ## the same two VMs with a prompt in each
	$(LAB) shell

attach: ## join this terminal to VM=a or VM=b of a running `make shell`
	$(LAB) attach --vm $(or $(VM),a)

test: setup-userland setup-qemu setup-guest userspace test-kernels ## all tests: host, KUnit in a VM, VM tests
	$(LAB) test $(TEST_ARGS) $(if $(T),--only $(T))

test-debug: ## KUnit and VM tests on a kernel with KASAN, UBSAN, lockdep, kmemleak; takes hours
	$(MAKE) VRNIC_KERNEL=debug TEST_ARGS="--guests --out build/test-debug" test

test-races: ## KUnit and VM tests on a kernel with KCSAN; takes hours
	$(MAKE) VRNIC_KERNEL=races TEST_ARGS="--guests --out build/test-races" test

fuzz: setup-tests ## search for hostile bytes that break something, 30 minutes each (MINUTES=n, T=target)
	@bash tools/fuzz/run.sh all "$(T)" $(MINUTES)

chaos: build ## run workloads under each fault, judge how they take it: W='pingpong rping' (default: all)
	$(LAB) chaos $(W)

bench: build setup-tests ## measure the device alone, and VMs beside rxe; tables, build/bench/report.json, charts
	$(LAB) bench

check: $(if $(KDIR),kernel-own,kernel-lab) ## rustfmt, clippy, docs and file rules, all without a warning
	@bash tools/setup/check.sh build/kernel/$(if $(KDIR),own,lab)

setup: setup-qemu setup-guest $(addprefix kernel-,$(call kernels,stock)) ## what `make run` needs but does not build here (quick when present)

build: setup-qemu setup-guest module userspace ## kernel module and userspace

module: $(addprefix module-,$(call kernels,stock)) ## build/kernel/NAME/module/vrnic.ko for the kernel NAME

# What guests of tests load. KUnit is not in Debian's kernel.
test-kernels: $(foreach kernel,$(call kernels,lab),module-$(kernel) test-modules-$(kernel)) kunit-module

kunit-module: $(patsubst %,kunit-%,$(filter-out stock,$(call kernels,lab)))

userspace: programs provider ## vrnicd, the provider (build/provider), the test programs and the lab

# Cargo has jobs of its own. At the end it shows what failed beside it, which was shorter at work. The fuzzers turn on
# features of other crates, as all tests do: programs for tests are built with them, or `cargo test` would build them anew.
programs: setup-packages
	cd tools && env -u MAKEFLAGS -u MFLAGS cargo build --quiet --release --workspace $(if $(filter test,$(MAKECMDGOALS)),,--exclude vrnic-fuzz)
	@! cat build/setup/failed 2>/dev/null

provider: setup-packages
	env -u MAKEFLAGS -u MFLAGS bash tools/libvrnic/build.sh build/provider

# CHECK=m, y: the result is built too; CHECK=all: each commit. SIGNOFF=1: git config says who signs.
series: $(if $(KDIR),kernel-own,kernel-lab) ## build/series: the kernel side as patches for Linux 7.3 (CHECK=m, CHECK=y, CHECK=all: build them)
	@bash tools/series/series.sh $(if $(SIGNOFF),--signoff)
	@$(if $(CHECK),bash tools/series/$(if $(filter all,$(CHECK)),check.sh,build.sh $(CHECK)))

manual: userspace ## build/manual: man pages, completions for bash, zsh and fish
	for program in vrnicd vrnicctl vrnic-lab vrnic-replay; do tools/target/release/$$program write-manual build/manual || exit; done

clean: ## remove what was built here (the cache outside the tree stays)
	rm -rf build
	cd tools && cargo clean

setup-packages:
	@$(SETUP) packages

setup-tests: setup-packages
	@$(SETUP) tests

setup-qemu setup-guest setup-userland: setup-%: setup-packages
	@$(SETUP) $*

# Each kernel has builds of its own, and each build of the module a copy of the sources of its own.
kernel-lab kernel-debug kernel-races: setup-tests
$(KERNELS:%=kernel-%): kernel-%: setup-packages
	@exec env VRNIC_KERNEL=$(filter-out own,$*) $(SETUP) kernel

define build-module
	@bash tools/setup/module-sources.sh build/kernel/$(1)
	+@build/kernel/$*/make M=$(CURDIR)/build/kernel/$(1) $(2) $(if $(V),V=$(V)) modules
endef

$(KERNELS:%=module-%): module-%: kernel-%
	$(call build-module,$*/module)

$(KERNELS:%=kunit-%): kunit-%: kernel-%
	$(call build-module,$*/kunit,CONFIG_INFINIBAND_VRNIC_KUNIT_TEST=y)

# Users of RDMA devices inside the kernel, for tests/vm.
$(KERNELS:%=test-modules-%): test-modules-%: kernel-%
	@mkdir -p build/kernel/$*/test-modules && rsync -rt tests/kernel/ build/kernel/$*/test-modules
	+@build/kernel/$*/make M=$(CURDIR)/build/kernel/$*/test-modules $(if $(V),V=$(V)) modules

.PHONY: help run shell attach test series test-debug test-races fuzz chaos bench check setup build module kunit-module test-kernels \
	userspace programs provider manual clean setup-packages setup-tests setup-qemu setup-guest setup-userland \
	$(foreach what,kernel module kunit test-modules,$(KERNELS:%=$(what)-%))
