# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnic: on a fresh Debian 12 or 13 machine, run `make run`. `make help` lists the other targets.
#
# VRNIC_KERNEL=<name>       kernel of the VMs: stock (Debian's own), lab (with KUnit and failing allocations), debug, races
# KDIR=<built kernel tree>  use this kernel instead
# QEMU=<program>            use this QEMU (10.1 or newer)
# T=<part of a name>        make test, make test-apps, make fuzz: only tests or targets whose name contains this; tests: also T=this,that
# W=<workloads>             make chaos: only these workloads
# MINUTES=<number>          make fuzz: minutes per target
# SECONDS=<number>          make simulate: virtual seconds (default: 1000000)
# SEED=<number>             make simulate: only the simulation of this seed

export PATH := /usr/bin:/bin:/usr/sbin:/sbin:$(PATH)
export KDIR QEMU VRNIC_KERNEL

# The parts of the setup and the builds run side by side; -j of the command line goes first.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell echo $$(($$(nproc) + 2)))
endif

LAB := tools/target/release/vrnic-lab
SETUP := bash tools/setup/setup.sh
KERNELS := stock lab debug races own
$(if $(filter-out $(KERNELS),$(VRNIC_KERNEL)),$(error VRNIC_KERNEL=$(VRNIC_KERNEL) is not a known kernel: set it to stock, lab, debug or races))
# The kernels that a command needs: the one that was asked for, else those it names.
kernels = $(if $(KDIR),own,$(or $(VRNIC_KERNEL),$(1)))

.DEFAULT_GOAL := help

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

run: build ## set up, build, boot two VMs, run RDMA programs between them, print a table of results
	$(LAB) run

shell: build ## boot the same two VMs and open a prompt in each
	$(LAB) shell

attach: ## open the prompt of VM=a or VM=b of a running `make shell` in this terminal
	$(LAB) attach --vm $(or $(VM),a)

test: setup-tests setup-userland setup-qemu setup-guest userspace test-kernels ## run the tests: host tests, KUnit in a VM, VM tests (T=part of a name)
	$(LAB) test $(TEST_ARGS) $(if $(T),--only $(T))

test-all: ## like test, but with the long VM tests, and each VM test on every fabric
	$(MAKE) TEST_ARGS="--all --out build/test-all" test

test-debug: ## run KUnit and VM tests on a kernel with KASAN, UBSAN, lockdep, kmemleak; takes hours
	$(MAKE) VRNIC_KERNEL=debug TEST_ARGS="--guests --out build/test-debug" test

test-races: ## run KUnit and VM tests on a kernel with KCSAN; takes hours
	$(MAKE) VRNIC_KERNEL=races TEST_ARGS="--guests --out build/test-races" test

fuzz: setup-tests ## fuzz each target for 30 minutes (MINUTES=n, T=target)
	@bash tools/fuzz/run.sh all "$(T)" $(MINUTES)

simulate: setup-tests ## simulate many devices and faults in virtual time (SECONDS=n: how long; SEED=n: only this simulation)
	cd tools && env -u MAKEFLAGS -u MFLAGS $(if $(SEED),VRNIC_SEED=$(SEED),VRNIC_SECONDS=$(or $(SECONDS),1000000)) \
		cargo test --release -p vrnic-simulation --test simulation -- --nocapture

chaos: build ## run workloads under each fault and report how they cope: W='pingpong rping' (default: all)
	$(LAB) chaos $(W)

bench: build setup-tests ## measure the device alone, then vrnic on each fabric and rxe in VMs; write build/bench/report.json and charts
	$(LAB) bench

check: $(if $(KDIR),kernel-own,kernel-lab) ## check formatting, lints, documentation and file rules; no warning is allowed
	@bash tools/setup/check.sh build/kernel/$(if $(KDIR),own,lab)

setup: setup-qemu setup-guest $(addprefix kernel-,$(call kernels,stock)) ## install and download what `make run` needs (quick if it is already there)

build: setup-qemu setup-guest module userspace ## build the kernel module and the user-space programs

module: $(addprefix module-,$(call kernels,stock)) ## build the kernel module: build/kernel/NAME/module/vrnic.ko (VRNIC_KERNEL=NAME)

# What guests of tests load. KUnit is not in Debian's kernel.
test-kernels: $(foreach kernel,$(call kernels,stock lab),module-$(kernel) test-modules-$(kernel)) kunit-module

kunit-module: $(patsubst %,kunit-%,$(filter-out stock,$(call kernels,lab)))

userspace: programs provider ## build vrnicd, the provider (build/provider), the test programs and the lab

# Cargo has jobs of its own. Parts that run beside it end earlier, so this shows their failures at the end. The fuzzers
# and the simulation turn on features of other crates, as all tests do: programs for tests are built with them, or
# `cargo test` would build them anew.
programs: setup-packages
	cd tools && env -u MAKEFLAGS -u MFLAGS cargo build --quiet --release --workspace $(if $(filter test,$(MAKECMDGOALS)),,--exclude vrnic-fuzz --exclude vrnic-simulation)
	@! cat build/setup/failed 2>/dev/null

provider: setup-packages
	env -u MAKEFLAGS -u MFLAGS bash tools/libvrnic/build.sh build/provider

# CHECK=m, y: the result is built too; CHECK=all: each commit; CHECK=style: checkpatch.pl reads it; CHECK=lint: clippy
# and rustdoc read it; CHECK=boot: the whole kernel is built and boots in VMs, with KUnit. SIGNOFF=1: git config says
# who signs.
series: $(if $(KDIR),kernel-own,kernel-lab) $(if $(filter boot,$(CHECK)),setup-qemu setup-guest userspace) ## make the patch series for Linux 7.3 in build/series (CHECK=m, y, all, boot: build it; CHECK=style, lint: read it)
	@bash tools/series/series.sh $(if $(SIGNOFF),--signoff)
	@$(if $(CHECK),bash tools/series/$(or $(patsubst %,%.sh,$(filter style lint boot,$(CHECK))),$(if $(filter all,$(CHECK)),check.sh),build.sh $(CHECK)))

bundle: setup-bundle setup-qemu setup-guest module-stock userspace ## make build/bundle.tar.gz: the lab for machines without compiler, root or network
	@bash tools/bundle/bundle.sh

# Not in `make test`: it builds the module for Debian's kernel, and all programs once more.
test-bundle: bundle ## run the bundle in a root directory with nothing else, as a user without rights and without network
	@bash tools/bundle/test.sh

manual: userspace ## make man pages, and completions for bash, zsh and fish, in build/manual
	for program in vrnicd vrnicctl vrnic-lab vrnic-replay; do tools/target/release/$$program write-manual build/manual || exit; done

packages: setup-packaging ## make Debian packages of vrnicd, the provider and the module in build/packages
	@bash tools/packages/build.sh build/packages

# Not in `make test`: it takes half an hour, most of which apt, a second build and compilers of kernels need.
test-packages: packages ## install the packages in fresh systems, build modules with DKMS, build packages again (T=part of a name)
	@VRNIC_KERNEL= KDIR= $(SETUP) packages qemu kernel
	@for test in tests/packages/*$(T)*.sh; do echo "$$test"; bash $$test || exit; done

# Not in `make test`: it needs a second guest image, and boots sixteen VMs.
test-apps: setup-apps setup-qemu setup-guest userspace module-stock module-lab ## run MPI, UCX, libfabric and more between four VMs (T=part of a name)
	@bash tests/apps/run.sh "$(T)"

# Not in `make test`: it needs two more images.
test-disk: setup-disk setup-qemu setup-guest userspace module-stock ## boot a VM from a disk image with cloud-init, and one with packages; log in by ssh
	@bash tests/disk/run.sh

clean: ## remove everything built in this tree (keeps the cache outside the tree)
	rm -rf build
	cd tools && cargo clean

setup-packages:
	@$(SETUP) packages

# Without the toolchain of setup-packages: vrnic-dkms on the same machine needs the rustc of Debian's kernels.
setup-packaging:
	@$(SETUP) packaging

setup-tests: setup-packages
	@$(SETUP) tests

setup-qemu setup-guest setup-apps setup-userland setup-bundle setup-disk: setup-%: setup-packages
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

# Users of RDMA devices inside the kernel, and modules of Linux with patches, for tests/vm.
$(KERNELS:%=test-modules-%): test-modules-%: kernel-%
	@mkdir -p build/kernel/$*/test-modules && rsync -rt tests/kernel/ tools/series/linux build/kernel/$*/test-modules
	+@build/kernel/$*/make M=$(CURDIR)/build/kernel/$*/test-modules $(if $(V),V=$(V)) modules

.PHONY: help run shell attach test test-all series bundle test-bundle packages test-packages test-apps test-disk test-debug test-races fuzz simulate chaos \
	bench check setup build module \
	kunit-module test-kernels userspace programs provider manual clean \
	setup-packages setup-tests setup-qemu setup-guest setup-apps setup-userland setup-bundle setup-packaging setup-disk \
	$(foreach what,kernel module kunit test-modules,$(KERNELS:%=$(what)-%))
