#!/usr/bin/perl
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Converts one source file to the form that it has in the kernel tree: convert.pl PATH MODULES <FILE >CONVERTED. PATH is
# the file's path in this repository. MODULES is the directory of its modules in the kernel tree: declarations of
# modules that the series has not added there yet are removed. If MODULES is empty, none are.
#
# Out of tree, the abstractions are crates next to `kernel`, and `rust/bindings` adds what `kernel` lacks or keeps
# private. In the kernel tree, `rust/virtio` is a module of `kernel`, and the functions of `compat` are methods of the
# real types. Only names differ, so only names are changed here.
use strict;
use warnings;

my ($path, $modules) = @ARGV;
local $/;
$_ = <STDIN>;

# Each part of the abstractions has its own tests, with their own option.
my $option = $path =~ m{^rust/(?:virtio/|helpers/virtio\.c$)} ? 'RUST_VIRTIO' : $path =~ m{^rust/} ? 'RUST_INFINIBAND' : 'INFINIBAND_VRNIC';
s/CONFIG_INFINIBAND_VRNIC_KUNIT_TEST/CONFIG_${option}_KUNIT_TEST/g;

s{`Documentation/virtio-rdma.rst`}{`Documentation/infiniband/virtio-rdma.rst`}g;
s{rust/wire/}{drivers/infiniband/hw/vrnic/wire/}g;
s{rust/rdma\b}{drivers/infiniband/rust}g;

kconfig() if $path eq 'Kconfig';
if ($path =~ /\.rs$/) {
	if ($modules ne '') {
		if ($path =~ m{/lib\.rs$}) { modules() } else { tests() }
	}
	compat();
	bindings();
	kernel_crate() if $path =~ m{^rust/(virtio|bindings)/};
	drivers() if $path =~ m{^(drivers|rust/wire)/};
	trace() if $path =~ m{^rust/trace/};
}
print;

sub kconfig {
	s/(\tdepends on (?!INFINIBAND_VRNIC).*\n)+/\tdepends on RUST_VIRTIO_ABSTRACTIONS && RUST_INFINIBAND_ABSTRACTIONS\n/;
	s/(depends on INFINIBAND_VRNIC && KUNIT)\n/$1=y\n\tdepends on RUST_VIRTIO_KUNIT_TEST && RUST_INFINIBAND_KUNIT_TEST\n/;
	s/\t  The tests of the abstractions .*\n\n//;
}

sub modules {
	for my $module (/^(?:pub )?mod (\w+);$/mg) {
		next if -e "$modules/$module.rs";
		s/^(#\[cfg.*\n)?(pub )?mod $module;\n//m;
		s/^(#\[cfg.*\n)?pub use ${module}::(\w+;|\{\n( .*\n)*\};)\n//mg;
	}
}

# Tests are added together with everything that they need.
sub tests {
	s/^#\[cfg\(CONFIG_\w+_KUNIT_TEST\)\]\nmod tests;\n\n//m unless -e "$modules/tests.rs";
}

# `compat::f(object)` becomes a method call on the object.
sub compat {
	my $arguments = qr/\((?:[^()]++|(\((?:[^()]++|(?-1))*+\)))*+\)/;
	s{(?:\w+::)*\bcompat::(?:device|gfp)_as_raw($arguments)}{receiver($1) . '.as_raw()'}ge;
	s{(?:\w+::)*\bcompat::drvdata_obtain(::<[^;]*?>)($arguments)}{receiver($2) . ".drvdata_obtain$1()"}ge;
	s{(?:\w+::)*\bcompat::resource_from_raw\b}{kernel::io::resource::Resource::from_raw}g;
	s{(?:\w+::)*\bcompat::member(?:_mut)?($arguments)}{$1 =~ /^\((.*)\)$/s; $1}ge;
	s{use (?:crate::compat|virtio)::Completion;}{use kernel::sync::Completion;};
	s{^pub use compat::Completion;\n}{}m;
	s{^    compat,( //)?\n}{}m;
}

# Returns the object of a call, given the call's parentheses with their only argument.
sub receiver {
	my ($object) = $_[0] =~ /^\(&?(.*)\)$/s;
	return $object;
}

# In the kernel tree one crate has all bindings.
sub bindings {
	s{^pub\(crate\) use vrnic_bindings::compat;\n}{}m;
	if ($path =~ m{^rust/virtio/}) {
		s{^pub\(crate\) use vrnic_bindings.*\n}{}mg;
	} else {
		s{^pub\(crate\) use vrnic_bindings as bindings;\n}{pub(crate) use kernel::bindings;\n}m;
		s{^pub\(crate\) use vrnic_bindings::gate;\n}{pub(crate) use kernel::sync::gate;\n}m;
		s{^pub\(crate\) use vrnic_bindings::device_memory;\n}{pub(crate) use kernel::io::device_memory;\n}m;
		s{^pub\(crate\) use vrnic_bindings::workqueue;\n}{pub(crate) use kernel::workqueue;\n}m;
		s{^use vrnic_bindings as bindings;}{use kernel::bindings;}m;
	}
}

# Converts a module of the kernel crate. Its imports from that crate and from itself have other names there.
sub kernel_crate {
	my @moved;
	s/^use crate::\{\n((?: .*\n)*?)\};\n/own_imports($1, \@moved)/mge;
	# rustfmt sorts imports, but leaves the comment after the last one where it is.
	pop @moved if @moved && $moved[-1] eq 'workqueue::Workqueue' &&
		s{^(use kernel::\{\n(?: .*\n)*?    .*,) //\n\};}{$1\n    workqueue::Workqueue, //\n\};}m;
	my $moved = join '', map { "    $_,\n" } @moved;
	s/^use kernel::\{\n/use kernel::{\n$moved/m or s/^(use kernel::.*;\n)/use kernel::{\n$moved};\n$1/m if @moved;

	s/(?<!\$)\bcrate::(?!bindings\b|virtio\b|sync\b|\{)/crate::virtio::/g;
	s/\$crate::/\$crate::virtio::/g;
	s/(?<!\w)::kernel::/\$crate::/g;
	s/\bkernel::/crate::/g;
	s/\n\n\n+/\n\n/g;
}

# Returns the imports of this module from itself. Those that come from elsewhere in the kernel crate go to `moved`.
sub own_imports {
	my ($own, $moved) = @_;
	push @$moved, 'bindings' if $own =~ s/^    bindings,( \/\/)?\n//m;
	push @$moved, 'sync::Gate' if $own =~ s/^    gate::Gate,( \/\/)?\n//m;
	push @$moved, 'io::device_memory::DeviceMemory' if $own =~ s/^    device_memory::DeviceMemory,( \/\/)?\n//m;
	push @$moved, 'workqueue::Workqueue' if $own =~ s/^    workqueue::Workqueue,( \/\/)?\n//m;
	return '' if $own eq '';
	return "use crate::virtio::$1;\n" if $own =~ /^ +(\w+),(?: \/\/)?\n$/;
	$own =~ s/,\n$/, \/\/\n/ if $own !~ /\},\n$/;
	return "use crate::virtio::{\n$own};\n";
}

# Converts users of what has moved, and removes the tests that run on the host.
sub drivers {
	s{(?<![:\w"])virtio::(\w+!)}{kernel::$1}g;
	s{(?<![:\w"])virtio::}{kernel::virtio::}g;
	s{\n#\[cfg\(test\)\]\nmod tests \{\n.*\n\}\n}{\n}s;
	s{^#!\[cfg_attr\(not\(CONFIG_RUST\), no_std\)\]\n}{}m;
	s{\n+\z}{\n};
}

# The kernel's own macro refers to the kernel's bindings.
sub trace {
	s{^(/// .*\n)*macro_rules! declare_trace \{\n.*?^\}\n\n}{}ms;
	s{^use vrnic_bindings::compat;\n}{}m;
	s{^declare_trace! }{kernel::declare_trace! }m;
}
