//! Sparse files on Windows, where holes in a file take space unless the file is marked as sparse.

use std::fs::File;
use std::io;
use std::os::windows::io::AsRawHandle;

use windows::Win32::Foundation::HANDLE;
use windows::Win32::System::IO::DeviceIoControl;
use windows::Win32::System::Ioctl::FSCTL_SET_SPARSE;

/// Marks a file that is open for writing as sparse, so that the parts that are never written take no space
/// (`FSCTL_SET_SPARSE`).
///
/// # Errors
///
/// The file system's error, if it does not support sparse files (FAT, exFAT).
pub fn make_sparse(file: &File) -> io::Result<()> {
    let handle = HANDLE(file.as_raw_handle());
    let mut returned = 0;
    // SAFETY: the handle is open during the call. This control code needs no buffer (winioctl.h: without one the file
    // is made sparse); `returned` is valid for writes, as every call without overlapped I/O requires.
    let done = unsafe { DeviceIoControl(handle, FSCTL_SET_SPARSE, None, 0, None, 0, Some(&raw mut returned), None) };
    done.map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use std::os::windows::fs::MetadataExt;

    /// `FILE_ATTRIBUTE_SPARSE_FILE` (winnt.h).
    const SPARSE: u32 = 0x200;

    #[test]
    fn a_file_is_sparse_once_it_was_made_so() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(file.metadata().unwrap().file_attributes() & SPARSE, 0);
        super::make_sparse(&file).unwrap();
        assert_eq!(file.metadata().unwrap().file_attributes() & SPARSE, SPARSE);
    }
}
