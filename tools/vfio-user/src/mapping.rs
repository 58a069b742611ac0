// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A file of the VMM, mapped into this process.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{FileType, fstat, fstatfs};
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mlock, mmap, msync, munmap};

use crate::sigbus;

/// File systems that may hold memory, as `statfs` reports them, with whether their files are on a disk. The kernel gets
/// the pages of such a file from its own memory or disks. On any other file system, a process or another machine may
/// provide a page, and an access blocks for as long as they like. That includes overlays, whose layers can be anything.
const ALLOWED: [(libc::c_long, bool); 6] = [
    (libc::TMPFS_MAGIC, false),
    (libc::HUGETLBFS_MAGIC, false),
    (RAMFS_MAGIC, false),
    // Of ext2 and ext3, too.
    (libc::EXT4_SUPER_MAGIC, true),
    (libc::XFS_SUPER_MAGIC, true),
    (libc::BTRFS_SUPER_MAGIC, true),
];
/// Type of a ramfs, which holds memfds if the kernel has no tmpfs.
const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;

/// Names of other file systems, for messages.
const OTHERS: [(libc::c_long, &str); 13] = [
    (libc::FUSE_SUPER_MAGIC, "FUSE"),
    (libc::OVERLAYFS_SUPER_MAGIC, "overlayfs"),
    (libc::NFS_SUPER_MAGIC, "NFS"),
    (libc::SMB_SUPER_MAGIC, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (libc::PROC_SUPER_MAGIC, "proc"),
    (libc::SYSFS_MAGIC, "sysfs"),
    (libc::F2FS_SUPER_MAGIC, "F2FS"),
    (0xca45_1a4e, "bcachefs"),
    (0x2fc1_2fc1, "ZFS"),
    (0x00c3_6400, "Ceph"),
];

/// Returns whether files on a file system of this type are on a disk.
///
/// # Errors
/// A file on it cannot be used as memory.
fn is_on_disk(kind: libc::c_long) -> io::Result<bool> {
    if let Some((_, on_disk)) = ALLOWED.iter().find(|(allowed, _)| *allowed == kind) {
        return Ok(*on_disk);
    }
    let other = OTHERS.iter().find(|(other, _)| *other == kind);
    let name = other.map_or_else(
        || format!("a file system of type {kind:#x}"),
        |(_, name)| (*name).to_owned(),
    );
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        format!(
            "the file is on {name}; it must be a memfd, or on tmpfs, hugetlbfs, ext4, XFS or Btrfs"
        ),
    ))
}

/// Identity of a file, the same for every descriptor that refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of the file behind `fd`.
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        let stat = fstat(fd)?;
        Ok(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }
}

/// A file mapped in full, shared and, if its descriptor allows it, writable.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Whether the file is on a disk or similar storage.
    persistent: bool,
    file: FileId,
    guard: Option<sigbus::Guard>,
}

// SAFETY: a `Mapping` owns its address range, into which no safe reference ever points. All methods access it through
// raw pointers, which are valid on any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent accesses are volatile, atomic or `memmove` and tolerate each other.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the whole file behind `fd`.
    ///
    /// # Errors
    /// The file is not a regular file with contents; it is on a file system that may block its readers, or of which
    /// that is not known; or the kernel refuses the mapping.
    pub fn new(fd: impl AsFd) -> io::Result<Self> {
        let fd = fd.as_fd();
        let stat = fstat(fd)?;
        let len = usize::try_from(stat.st_size).map_err(|_| io::ErrorKind::InvalidInput)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let persistent = is_on_disk(fstatfs(fd)?.f_type)?;
        let flags = rustix::fs::fcntl_getfl(fd)?;
        let writable = flags & rustix::fs::OFlags::RWMODE == rustix::fs::OFlags::RDWR;
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                0,
            )?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut mapping = Self {
            base,
            len,
            writable,
            persistent,
            file: FileId {
                device: stat.st_dev,
                inode: stat.st_ino,
            },
            guard: None,
        };
        // Needed even for a sealed memfd, which cannot shrink, because huge pages may run out.
        let guard = sigbus::Guard::new(base.as_ptr() as usize, len);
        mapping.guard = Some(guard.ok_or(io::ErrorKind::OutOfMemory)?);
        // SAFETY: the range is the one just mapped; DONTDUMP changes no contents.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontDump) };
        Ok(mapping)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether the mapping has no bytes, which is never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether stores are allowed.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns whether writes to this mapping can be made persistent.
    pub fn is_persistent(&self) -> bool {
        self.persistent && self.writable
    }

    /// Makes writes to `length` bytes at `offset` persistent. Takes as long as the disk does.
    pub fn sync(&self, offset: u64, length: u64) -> io::Result<()> {
        if !self.is_persistent() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let page = rustix::param::page_size() as u64;
        let start = offset & !(page - 1);
        let from =
            (length.checked_add(offset - start)).and_then(|bytes| self.pointer(start, bytes));
        let from = from.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the range is in the mapping and begins at a page; the contents of memory do not change.
        unsafe {
            msync(
                from.cast(),
                (length + offset - start) as usize,
                MsyncFlags::SYNC,
            )
        }?;
        // The mapping may have been replaced by zeros, which were not written to the file.
        if self.is_lost() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    }

    /// Returns the identity of the mapped file.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// Returns whether a page of the file did not exist, after which nothing can be accessed any more.
    pub fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(sigbus::Guard::is_lost)
    }

    /// Locks `length` bytes at `offset` into memory while the mapping lives.
    pub fn lock(&self, offset: u64, length: u64) -> io::Result<()> {
        let from = self
            .pointer(offset, length)
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the range is in the mapping; locking does not change its contents.
        Ok(unsafe { mlock(from.cast(), length as usize) }?)
    }

    /// Returns a pointer to `length` bytes at `offset`, or `None` if they are not all inside the mapping or the file is
    /// lost. The pointer is valid while `self` lives.
    pub fn pointer(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        if end > self.len() || self.is_lost() {
            return None;
        }
        // SAFETY: offset <= len, so the result points into the mapping or one past its end.
        Some(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    fn writable_pointer(&self, offset: u64, length: u64) -> Option<*mut u8> {
        self.writable
            .then(|| self.pointer(offset, length))
            .flatten()
    }

    /// Copies bytes from the mapping. Reads each byte of guest memory exactly once.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        let mut from = self.pointer(offset, buffer.len() as u64)?.cast_const();
        let (head, words, tail) = {
            let lead = from.align_offset(8).min(buffer.len());
            let (head, rest) = buffer.split_at_mut(lead);
            let (words, tail) = rest.split_at_mut(rest.len() / 8 * 8);
            (head, words, tail)
        };
        let mut bytes = |buffer: &mut [u8]| {
            for byte in buffer {
                // SAFETY: `from` advances once per byte of `buffer`, all of which were checked to lie in the mapping.
                unsafe {
                    *byte = from.read_volatile();
                    from = from.add(1);
                }
            }
        };
        bytes(head);
        #[allow(clippy::cast_ptr_alignment, reason = "aligned by the bytes of `head`")]
        let mut from_words = from.cast::<u64>();
        for word in words.chunks_exact_mut(8) {
            // SAFETY: `from_words` is 8-byte aligned after `head` and advances once per 8 bytes of `words`, all inside.
            unsafe {
                word.copy_from_slice(&from_words.read_volatile().to_ne_bytes());
                from_words = from_words.add(1);
            }
        }
        from = from_words.cast();
        for byte in tail {
            // SAFETY: as for `head`.
            unsafe {
                *byte = from.read_volatile();
                from = from.add(1);
            }
        }
        Some(())
    }

    /// Copies bytes to the mapping.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Option<()> {
        let to = self.writable_pointer(offset, bytes.len() as u64)?;
        // SAFETY: the destination was checked; source and destination cannot overlap because no Rust slice points into
        // a mapping.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Some(())
    }

    /// Copies bytes from the mapping whose contents are never interpreted, so that tearing does not matter.
    pub fn read_payload(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        let from = self.pointer(offset, buffer.len() as u64)?;
        // SAFETY: the source was checked; source and destination cannot overlap because no Rust slice points into a
        // mapping. If the guest writes concurrently, the copy may contain a part of that, which affects only the
        // guest's own data.
        unsafe { ptr::copy_nonoverlapping(from.cast_const(), buffer.as_mut_ptr(), buffer.len()) };
        Some(())
    }

    /// Copies `length` bytes at `from_offset` in `from` to `offset` in `self`; the ranges may overlap.
    pub fn copy_from(
        &self,
        offset: u64,
        from: &Mapping,
        from_offset: u64,
        length: u64,
    ) -> Option<()> {
        let source = from.pointer(from_offset, length)?;
        let target = self.writable_pointer(offset, length)?;
        // SAFETY: both ranges were checked; `ptr::copy` allows overlap.
        unsafe { ptr::copy(source, target, length as usize) };
        Some(())
    }

    /// Runs `access` on the 32-bit word at `offset`, if that is aligned, inside the mapping, and writable.
    pub fn with_u32<R>(&self, offset: u64, access: impl FnOnce(&AtomicU32) -> R) -> Option<R> {
        #[allow(clippy::cast_ptr_alignment, reason = "checked before it is used")]
        let word = self.writable_pointer(offset, 4)?.cast::<u32>();
        // SAFETY: inside the mapping, aligned as checked, and alive during the call. All other accesses by this process
        // to a word that is used as an atomic are atomic or volatile; accesses by the guest are outside of the Rust
        // abstract machine.
        word.is_aligned()
            .then(|| access(unsafe { AtomicU32::from_ptr(word) }))
    }

    /// Runs `access` on the 64-bit word at `offset`, if that is aligned, inside the mapping, and writable.
    pub fn with_u64<R>(&self, offset: u64, access: impl FnOnce(&AtomicU64) -> R) -> Option<R> {
        #[allow(clippy::cast_ptr_alignment, reason = "checked before it is used")]
        let word = self.writable_pointer(offset, 8)?.cast::<u64>();
        // SAFETY: as in `with_u32`.
        word.is_aligned()
            .then(|| access(unsafe { AtomicU64::from_ptr(word) }))
    }

    /// Stores a byte after all earlier stores.
    pub fn store_u8_release(&self, offset: u64, value: u8) -> Option<()> {
        let to = self.writable_pointer(offset, 1)?;
        fence(Ordering::Release);
        // SAFETY: inside the mapping as checked.
        unsafe { to.write_volatile(value) };
        Some(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The guard must go first: once the range is unmapped, another mapping may use it.
        self.guard = None;
        // SAFETY: the range belongs to `self` alone, and no pointer into it is left: pointers do not outlive the borrow
        // of `self` that produced them.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, ftruncate, memfd_create};
    use std::os::fd::{AsRawFd, OwnedFd};

    pub(crate) fn memfd(len: u64) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len).unwrap();
        fd
    }

    #[test]
    fn bytes_come_back_at_every_alignment() {
        let mapping = Mapping::new(memfd(8192)).unwrap();
        let pattern: Vec<u8> = (0..100).collect();
        for offset in 4090..4106 {
            for len in 0..40 {
                mapping.write(offset, &pattern[..len]).unwrap();
                let mut back = vec![0xff; len];
                mapping.read(offset, &mut back).unwrap();
                assert_eq!(back, pattern[..len], "{len} bytes at {offset}");
            }
        }
    }

    #[test]
    fn nothing_outside_is_reachable() {
        let mapping = Mapping::new(memfd(4096)).unwrap();
        assert!(mapping.read(4090, &mut [0; 7]).is_none());
        assert!(mapping.write(u64::MAX, &[0]).is_none());
        assert!(mapping.copy_from(0, &mapping, 1, 4096).is_none());
        assert!(mapping.with_u64(4092, |_| ()).is_none());
        assert!(mapping.with_u64(4, |_| ()).is_none(), "misaligned");
        assert!(mapping.with_u32(4092, |_| ()).is_some());
        assert!(mapping.read(4096, &mut []).is_some());
        assert!(mapping.read_payload(4096, &mut []).is_some());
        assert!(mapping.read_payload(4090, &mut [0; 7]).is_none());
        mapping.write(4089, b"payload").unwrap();
        let mut back = [0; 7];
        mapping.read_payload(4089, &mut back).unwrap();
        assert_eq!(&back, b"payload");
    }

    #[test]
    fn overlapping_copy_is_a_memmove() {
        let mapping = Mapping::new(memfd(4096)).unwrap();
        mapping.write(0, &[1, 2, 3, 4, 5]).unwrap();
        mapping.copy_from(1, &mapping, 0, 4).unwrap();
        let mut back = [0; 5];
        mapping.read(0, &mut back).unwrap();
        assert_eq!(back, [1, 1, 2, 3, 4]);
    }

    #[test]
    fn a_read_only_descriptor_gives_a_read_only_mapping() {
        let fd = memfd(4096);
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let mapping = Mapping::new(std::fs::File::open(path).unwrap()).unwrap();
        assert!(!mapping.is_writable());
        assert!(mapping.write(0, &[1]).is_none());
        assert!(mapping.read(0, &mut [0]).is_some());
    }

    #[test]
    fn files_on_a_disk_are_persistent() {
        sigbus::install().unwrap();
        let volatile = Mapping::new(memfd(8192)).unwrap();
        assert!(!volatile.is_persistent());
        assert!(volatile.sync(0, 8192).is_err());

        // In a container, /var/tmp may be on an overlay, but the source tree may not.
        let disk = ["/var/tmp", env!("CARGO_MANIFEST_DIR")]
            .into_iter()
            .find(|directory| {
                let kind = rustix::fs::statfs(*directory).unwrap().f_type;
                is_on_disk(kind).is_ok_and(|on_disk| on_disk)
            });
        let file = tempfile::NamedTempFile::new_in(disk.expect("a disk with ext4")).unwrap();
        file.as_file().set_len(3 << 12).unwrap();
        let read_only = Mapping::new(std::fs::File::open(file.path()).unwrap()).unwrap();
        assert!(!read_only.is_persistent());
        let mapping = Mapping::new(file.as_file()).unwrap();
        assert!(mapping.is_persistent());
        mapping.write(5000, b"kept").unwrap();
        for (offset, length) in [(5000, 4), (0, 3 << 12), (4096, 0), (4097, 4096)] {
            mapping.sync(offset, length).unwrap();
        }
        for (offset, length) in [(0, (3 << 12) + 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(mapping.sync(offset, length).is_err());
        }
        file.as_file().set_len(4096).unwrap();
        mapping.read(5000, &mut [0]).unwrap();
        assert!(mapping.sync(0, 1).is_err(), "the file is lost");
    }

    #[test]
    fn what_is_not_a_file_is_refused() {
        assert!(Mapping::new(memfd(0)).is_err());
        assert!(Mapping::new(std::fs::File::open("/dev/zero").unwrap()).is_err());
    }

    #[test]
    fn a_file_is_refused_if_reading_it_may_block() {
        for (kind, _) in OTHERS {
            let refused = is_on_disk(kind).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        }
        let told = |kind| is_on_disk(kind).unwrap_err().to_string();
        assert!(told(libc::FUSE_SUPER_MAGIC).contains("on FUSE;"));
        assert!(told(libc::OVERLAYFS_SUPER_MAGIC).contains("on overlayfs;"));
        assert!(told(0x1234_5678).contains("of type 0x12345678;"));
        assert!(!is_on_disk(libc::TMPFS_MAGIC).unwrap());
        assert!(is_on_disk(libc::XFS_SUPER_MAGIC).unwrap());
        // A regular file with contents on another file system.
        let file = std::fs::File::open("/sys/kernel/uevent_seqnum").unwrap();
        let refused = Mapping::new(file).unwrap_err().to_string();
        assert!(refused.contains("on sysfs;"), "{refused}");
    }

    /// Returns the number of kernel mappings within ours.
    fn pieces(mapping: &Mapping) -> usize {
        let start = mapping.base.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let begins = maps.lines().map(|line| line.split('-').next().unwrap());
        let begins = begins.map(|begin| usize::from_str_radix(begin, 16).unwrap());
        let inside = start..start + mapping.len;
        begins.filter(|begin| inside.contains(begin)).count()
    }

    #[test]
    fn a_file_that_shrinks_is_lost() {
        sigbus::install().unwrap();
        let fd = memfd(64 << 12);
        let mapping = Mapping::new(&fd).unwrap();
        assert!(!mapping.is_lost());
        mapping.write(4096, &[7]).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let mut byte = [1];
        mapping.read(4096, &mut byte).unwrap();
        assert_eq!(byte, [0], "whoever finds out reads zeros");
        assert!(mapping.is_lost());
        // A lost file is no longer accessible, so further accesses cost no memory and no additional mappings.
        for page in (0..64).step_by(2) {
            assert!(mapping.read(page << 12, &mut byte).is_none());
            assert!(mapping.write(page << 12, &[9]).is_none());
        }
        assert_eq!(pieces(&mapping), 1);
    }

    #[test]
    fn huge_pages_that_run_out_end_no_one_else() {
        sigbus::install().unwrap();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let fd = memfd_create("test", flags).expect("Debian's kernels have huge pages");
        ftruncate(&fd, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let mapping = Mapping::new(&fd).unwrap();
        let free =
            std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        mapping.write(0, &[1]).unwrap();
        // If an administrator has reserved huge pages, the access succeeds.
        assert_eq!(mapping.is_lost(), free.unwrap().trim() == "0");
    }

    #[test]
    fn a_hundred_machines_may_shrink_all_their_files() {
        sigbus::install().unwrap();
        let files = (0..3000).map(|_| {
            let fd = memfd(4096);
            let mapping = Mapping::new(&fd).unwrap();
            ftruncate(&fd, 0).unwrap();
            mapping
        });
        let files: Vec<Mapping> = files.collect();
        for mapping in &files {
            mapping.read(0, &mut [1]).unwrap();
            assert!(mapping.is_lost());
        }
    }
}
