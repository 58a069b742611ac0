#!/usr/bin/perl
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Writes the sources of a crate as far as they can be compiled without the modules that the series has not added yet:
# prune.pl FROM TO. Takes the Rust files of the directory FROM and removes what needs modules that are not there:
# imports, items of modules, traits and implementations, fields, and statements that only act. What needs what was
# removed is removed too. So each patch adds to files of earlier patches what its own files make possible, and the
# last one completes them. Prints the names of files that it has written.
#
# It relies on the format of the sources, and on files that import what they use of other modules of their crate.
use strict;
use warnings;
use File::Find;
use File::Path 'make_path';
use File::Basename;

my ($from, $to) = @ARGV;
my (%text, %gone, %missing, %alias);
find({ no_chdir => 1, wanted => sub { $text{ substr $_, length("$from/") } = slurp($_) if /\.rs$/ } }, $from);
# A directory with a root is another crate.
for my $other (map { m{(.+/)lib\.rs$} } keys %text) { delete @text{ grep { /^\Q$other/ } keys %text } }
my %declared;
for my $file (keys %text) {
	my $path = path_of($file);
	$declared{ join '::', $path || (), $1 } = 1 while $text{$file} =~ /^(?:pub(?:\([^)]*\))? )?mod (\w+);/mg;
}
my %module = map { path_of($_) => 1 } keys %text;

my (%out, $changed, $cut);
do {
	$changed = 0;
	for my $file (sort keys %text) {
		my @lines = split /\n/, $text{$file};
		@lines = imports($file, @lines);
		($out{$file}) = join("\n", prune($file, 'items', '', @lines)) . "\n";
	}
} while ($changed);
for my $file (sort keys %out) {
	my $path = "$to/$file";
	$out{$file} =~ s/\n\n\n+/\n\n/g;
	next if -e $path && slurp($path) eq $out{$file};
	make_path(dirname($path));
	open my $handle, '>', $path or die "$path: $!\n";
	print $handle $out{$file};
	print "$path\n";
}

sub slurp {
	open my $handle, '<', $_[0] or die "$_[0]: $!\n";
	local $/;
	return scalar <$handle>;
}

# Returns the path of a file's module; that of the crate is empty.
sub path_of {
	my ($file) = @_;
	$file =~ s/\.rs$//;
	return $file eq 'lib' ? '' : $file =~ s{/}{::}gr;
}

# Notes that what matches a pattern is missing in a file.
sub miss {
	my ($file, $pattern) = @_;
	$changed = 1 unless $missing{$file}{$pattern}++;
}

# pattern NAME: matches uses of an imported name.
sub pattern {
	my ($name) = @_;
	return $name =~ /^[A-Z]/ ? "\\b$name\\b" : "(?<![\\w.:])(?<!fn )$name(?=\\(|!|::)";
}

# Returns whether the crate has, as far as is known, this module or item. `self` stands for the module.
sub exists_in_crate {
	my @path = grep { $_ ne 'self' } @_;
	for my $length (1 .. @path) {
		my $name = join '::', @path[0 .. $length - 1];
		return 0 if $declared{$name} && !$module{$name};
	}
	my $item = pop @path;
	return !$gone{ join '::', @path }{$item};
}

# Removes imports from modules that are missing.
sub imports {
	my ($file, @lines) = @_;
	my $text = join("\n", @lines) . "\n";
	my @path = split /::/, path_of($file);
	# A module names its own modules without `crate::`.
	$text =~ s/^((?:pub(?:\(crate\))? )?use )crate::(.*?);\n/left($file, "$1crate::", $2)/gmse;
	$text =~ s/^((?:pub(?:\(crate\))? )?use )((\w+)::.*?);\n/$declared{join '::', @path, $3} ? left($file, $1, $2, @path) : $&/gmse;
	return split /\n/, $text;
}

# Returns what is left of imports.
sub left {
	my ($file, $use, $tree, @prefix) = @_;
	$cut = 0;
	my $kept = tree($file, $tree, '', @prefix);
	return '' unless defined $kept;
	return $use . ($cut ? $kept : $tree) . ";\n";
}

# Returns what is left of a tree of imports, in the kernel's style.
sub tree {
	my ($file, $tree, $indent, @prefix) = @_;
	$tree =~ s{ *//$}{}gm;
	if ($tree =~ /^\s*(\w+)::(.*)$/s) {
		my ($first, $rest) = ($1, $2);
		my $kept = tree($file, $rest, $indent, @prefix, $first);
		return defined $kept ? "${first}::$kept" : undef;
	}
	if ($tree =~ /^\s*\{(.*)\}\s*$/s) {
		my @kept = grep { defined } map { tree($file, $_, "$indent    ", @prefix) } parts($1);
		return @kept > 1 ? "{\n$indent    " . join(",\n$indent    ", @kept) . ", //\n$indent}" : $kept[0];
	}
	my ($name) = $tree =~ /(\w+|\*)/;
	my $known = $tree =~ / as (\w+)/ ? $1 : $name eq 'self' ? $prefix[-1] : $name;
	if ($name eq '*' || exists_in_crate(@prefix, $name)) {
		$alias{$file}{$known} = join '::', @prefix, $name eq 'self' ? () : $name;
		return $tree =~ s/^\s+|\s+$//gr;
	}
	miss($file, pattern($known));
	$cut = 1;
	return undef;
}

# Splits at commas that are not in braces.
sub parts {
	my ($text) = @_;
	my ($depth, $part, @parts) = (0, '');
	for my $char (split //, $text) {
		$depth++ if $char eq '{';
		$depth-- if $char eq '}';
		if ($char eq ',' && !$depth) { push @parts, $part; $part = ''; next }
		$part .= $char;
	}
	return grep { /\w|\*/ } @parts, $part;
}

# Returns the code of a line, without comments and the contents of strings.
sub code {
	my ($line) = @_;
	$line =~ s/b?'(?:[^'\\]|\\.)'//g;
	$line =~ s/"(?:[^"\\]|\\.)*"/""/g;
	$line =~ s{//.*}{};
	return $line;
}

# Whether code needs something that is missing.
sub needs {
	my ($file, @lines) = @_;
	my $code = join "\n", map { code($_) } @lines;
	for my $pattern (keys %{ $missing{$file} }) { return 1 if $code =~ /$pattern/ }
	while ($code =~ /(?<!:)\b(\w+)::(\w+)/g) {
		my $in = $alias{$file}{$1};
		return 1 if defined $in && $gone{$in}{$2};
	}
	while ($code =~ /\bcrate::(\w+(?:::\w+)*)/g) { return 1 unless exists_in_crate(split /::/, $1) }
	return 0;
}

# Removes what needs something that is missing from the inside of an item or a statement: from `items`, such as those
# of a trait, or from the statements of a `body`. $in is the beginning of the whole, nothing for a file. Returns
# nothing if the rest would make no sense.
sub prune {
	my ($file, $kind, $in, @lines) = @_;
	my (@out, $failed);
	my @chunks = chunks(@lines);
	for my $index (0 .. $#chunks) {
		my ($blank, $prefix, $body) = @{ $chunks[$index] };
		my @kept = chunk($file, $in, @$body);
		if (@kept || !@$body) {
			push @out, @$blank, @$prefix, @kept;
			next;
		}
		removed($file, $in, @$body);
		# A statement that binds a name, or is the value of the block, cannot be removed alone.
		$failed = 1 if $kind eq 'body' && ($body->[0] =~ /^\s*let\b/ || ($index == $#chunks && $body->[-1] !~ /;$/));
	}
	return $failed ? () : @out;
}

# Returns what is left of an item or a statement.
sub chunk {
	my ($file, $in, @lines) = @_;
	if ($lines[0] =~ /^(?:pub(?:\([^)]*\))? )?mod (\w+);/) {
		my $parent = path_of($file);
		return $module{ $parent eq '' ? $1 : "${parent}::$1" } ? @lines : ();
	}
	return @lines unless needs($file, @lines);
	# A variant is removed as a whole.
	return () if $in =~ /\benum\b/;
	my ($depth, $start) = (0);
	for my $index (0 .. $#lines) {
		my $code = code($lines[$index]);
		$depth += ($code =~ tr/([{//) - ($code =~ tr/)]}//);
		next unless $code =~ /\{\s*$/;
		$start = $index;
		last;
	}
	return () unless defined $start;
	my @header = @lines[0 .. $start];
	return () if needs($file, @header);
	my $header = join ' ', @header;
	# A line that ends in a brace and is none of these is a structure: `Qp {`.
	my $inner = $header =~ /^\s*(?:pub(?:\([^)]*\))? )?(?:unsafe )?(?:impl|trait|mod|struct|enum|extern "C")\b/ ? 'items'
		: $header =~ /^\s*\w+! \{$/ || $header =~ /\bmatch\b[^;]*\{$/ ? 'items'
		: $header =~ /\b(?:fn|unsafe|if|else|for|while|loop)\b|(?:\||=>) \{$/ ? 'body'
		: $header =~ /= \{$/ ? 'body'
		: $header =~ /[\w>] \{$/ ? 'items'
		: return ();
	my $outside = $depth - 1;
	my (@out, @inside) = @header;
	for my $index ($start + 1 .. $#lines) {
		my $code = code($lines[$index]);
		my $least = $depth;
		for my $char ($code =~ /([(\[{)\]}])/g) { $depth += $char =~ /[(\[{]/ ? 1 : -1; $least = $depth if $depth < $least }
		if ($least <= $outside) {
			return () if needs($file, $lines[$index]);
			my @kept = prune($file, $inner, $header, @inside);
			return () if @inside && !@kept && ($inner eq 'body' || $header =~ /\b(?:impl|if)\b/);
			push @out, @kept, $lines[$index];
			@inside = ();
			next;
		}
		push @inside, $lines[$index];
	}
	return @inside ? () : @out;
}

# Notes what was removed from an item.
sub removed {
	my ($file, $in, @lines) = @_;
	my $header = join ' ', @lines;
	if ($in =~ /\bstruct\b/ && $header =~ /^\s*(?:pub(?:\([^)]*\))? )?(\w+):/) {
		miss($file, "(?m:\\.|^\\s+)$1\\b(?!\\()");
		return;
	}
	if (my ($of) = $in =~ /\benum (\w+)/) {
		my ($variant) = $header =~ /^\s*(\w+)/;
		miss($_, "\\b${of}::$variant\\b") for keys %text;
		return;
	}
	my ($name) = $header =~ /^\s*(?:pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?(?:extern "C" )?(?:fn|struct|enum|trait|type|const|static|macro_rules!) (\w+)/;
	return unless defined $name;
	if ($in eq '') {
		miss($file, pattern($name));
		$changed = 1 unless $gone{ path_of($file) }{$name}++;
	} elsif ($header =~ /\b(?:const|fn) $name\b/) {
		miss($file, "\\bSelf::$name\\b");
		# The attribute `vtable` makes a constant of each method of a trait.
		if ($in =~ /\btrait (\w+)/) {
			my $of = $1 eq 'Operations' ? 'T' : $1;
			miss($_, "\\b${of}::HAS_\U$name\E\\b") for keys %text;
		}
	}
}

# Splits lines into items or statements. Each has blank lines, then comments and attributes, then its own lines.
sub chunks {
	my (@lines) = @_;
	my (@chunks, @blank, @prefix, @body);
	my ($depth, $angle, $where, $attribute) = (0, 0, 0, 0);
	for my $index (0 .. $#lines) {
		my $line = $lines[$index];
		my $code = code($line);
		if (!@body) {
			if ($line =~ /^\s*$/) {
				push @{ @prefix ? \@prefix : \@blank }, $line;
				next;
			}
			if ($line =~ m{^\s*//} || $attribute || $line =~ /^\s*#!?\[/) {
				push @prefix, $line;
				$attribute += ($code =~ tr/([{//) - ($code =~ tr/)]}//);
				next;
			}
		}
		push @body, $line;
		$depth += ($code =~ tr/([{//) - ($code =~ tr/)]}//);
		$where = 1 if $code =~ /^\s*where$/;
		$where = 0 if $code =~ /[;{]\s*$/;
		$angle = 1 if $code =~ /<\s*$/;
		$angle = 0 if $code =~ /^\s*>/;
		next if $depth || $where || $angle;
		my $next = $lines[ $index + 1 ] // '';
		$code =~ s/\s+$//;
		next unless $code =~ /[;,]$/ || ($code =~ /\}$/ && $next !~ /^\s*(?:[.?]|else\b|==|&&|\|\|)/) || $index == $#lines;
		push @chunks, [[@blank], [@prefix], [@body]];
		(@blank, @prefix, @body) = ();
	}
	push @chunks, [[@blank], [@prefix], [@body]] if @blank || @prefix || @body;
	return @chunks;
}
