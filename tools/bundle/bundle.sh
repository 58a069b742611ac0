#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Builds build/bundle and packs it as build/bundle.tar.gz: the lab for any x86-64 Linux, where it needs neither root nor
# a compiler nor a network. `make bundle` first builds what this script collects. The layout is that of the source tree,
# so that the lab finds its files in both, see tools/lab/src/settings.rs.
set -euo pipefail
cd "$(dirname "$0")/../.."
bundle=build/bundle
target=x86_64-unknown-linux-gnu
tree=$bundle/build/kernel/stock/tree
stock=$(readlink -f build/kernel/stock/tree)
release=$(cat "$stock/include/config/kernel.release")
log=build/bundle.log

say() { echo "bundle: $*"; }
trap 'say "failed; the log is $PWD/$log" >&2' ERR
: >"$log"
rm -rf "$bundle" "$bundle.tar.gz"
mkdir -p "$bundle/bin" "$bundle/build/setup" "$bundle/qemu"

say "programs that need no library ..."
# Linked statically: the libraries of the target machine may be older.
(cd tools && RUSTFLAGS='-C target-feature=+crt-static' env -u MAKEFLAGS -u MFLAGS cargo build --quiet --release --target $target \
	-p vrnicd -p vrnicctl -p vrnic-replay -p vrnic-lab --bin vrnicd --bin vrnicctl --bin vrnic-replay --bin vrnic-lab) >>"$log" 2>&1
for program in vrnicd vrnicctl vrnic-replay vrnic-lab; do
	strip -o "$bundle/bin/$program" "${CARGO_TARGET_DIR:-tools/target}/$target/release/$program"
done
ln -s bin/vrnic-lab "$bundle/vrnic-lab"

say "what the VMs see as /vrnic ..."
tools/target/release/vrnic-lab stage "$bundle/share" >>"$log" 2>&1
# These programs run only in the VMs, where nobody debugs them.
find "$bundle/share/bin" "$bundle/share/lib" -maxdepth 1 -type f -exec strip {} + 2>>"$log" || true

say "Linux $release ..."
mkdir -p "$tree"/{arch/x86/boot,include/config,lab/modules}
cp "$stock/.config" "$tree/"
cp "$stock/include/config/kernel.release" "$tree/include/config/"
cp "$stock/arch/x86/boot/bzImage" "$tree/arch/x86/boot/"
cp -r "$stock/lab/modules/." "$tree/lab/modules/"
SETUP_DIR=tools/setup
. tools/setup/initramfs.sh
initramfs_make "$stock/lab/busybox" "$(dirname "$stock")/root" "$release" "$PWD/$tree/lab/initramfs" \
	virtio_pci 9pnet_virtio 9p virtio_blk erofs >>"$log" 2>&1

say "the VMs' image ..."
mkfs.erofs -zlz4 -T0 "$bundle/build/guest.erofs" "$(readlink -f build/setup/guest)" >>"$log" 2>&1
ln -s ../guest.erofs "$bundle/build/setup/guest"

say "QEMU ..."
qemu=$(dirname "$(readlink -f build/setup/qemu-unpacked)")
qemu=$qemu/root/usr
mkdir -p "$bundle/qemu"/{bin,lib/qemu,share,ipxe}
cp "$qemu/bin/qemu-system-x86_64" "$bundle/qemu/bin/"
cp -P "$qemu"/lib/x86_64-linux-gnu/*.so* "$bundle/qemu/lib/"
cp "$qemu"/lib/x86_64-linux-gnu/qemu/*.so "$bundle/qemu/lib/qemu/" 2>>"$log" || true
cp -rL "$qemu/share/qemu" "$qemu/share/seabios" "$bundle/qemu/share/" 2>>"$log" || true
cp "$qemu"/lib/ipxe/qemu/*virtio* "$bundle/qemu/ipxe/" 2>>"$log" || true
# Remove firmware for other processors.
rm -f "$bundle"/qemu/share/qemu/{skiboot,openbios,slof,opensbi,u-boot,hppa,palcode,s390,edk2,vof,pnv}* "$bundle"/qemu/share/qemu/*.dtb
cat >"$bundle/qemu/qemu-system-x86_64" <<'EOF'
#!/bin/sh
# Runs QEMU with the loader and the libraries that came along.
here=$(cd "$(dirname "$0")" && pwd)
export QEMU_MODULE_DIR="$here/lib/qemu"
exec "$here/lib/ld-linux-x86-64.so.2" --argv0 qemu-system-x86_64 --library-path "$here/lib" "$here/bin/qemu-system-x86_64" \
	-L "$here/share/qemu" -L "$here/share/seabios" -L "$here/ipxe" "$@"
EOF
chmod +x "$bundle/qemu/qemu-system-x86_64"
ln -s ../../qemu/qemu-system-x86_64 "$bundle/build/setup/qemu"

cat >"$bundle/bundle.txt" <<EOF
vrnic $(tools/target/release/vrnic-lab --version | cut -d' ' -f2), $(git describe --always --dirty 2>/dev/null || echo 'no commit'), Linux $release

./vrnic-lab run                                  boot two VMs with an RNIC each, run RDMA programs between them
./vrnic-lab shell                                a prompt in each VM
./vrnic-lab exec --tree DIR -- COMMAND           run your command in a VM, in your directory
./vrnic-lab pair --tree DIR -- SERVER --- CLIENT run your server in one VM and your client in the other
./vrnic-lab --help

Logs and reports are in build/. Delete this directory to remove everything.
EOF

say "$bundle.tar.gz ..."
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct 2>/dev/null || echo 0)" \
	--transform='s,^bundle,vrnic,' -C build -c bundle | gzip -n >"$bundle.tar.gz"
say "$bundle.tar.gz, $(du -m "$bundle.tar.gz" | cut -f1) MB: unpack it anywhere and run vrnic/vrnic-lab run"
