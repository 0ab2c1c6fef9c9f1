//! A card whose memory several processes share. The bytes are counted in a file.
//!
//! The file is a table with the number of bytes of each member. It is read and written only under the file's lock. As
//! long as it lives, each member also keeps a lock on its own file, `<file>.<place>`. The system releases the locks of
//! a process when it ends, even if it is killed. So if a place's lock is free, the place belongs to nobody, and its
//! bytes count as free again.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Maximum number of cards that share one file, which is enough for four processes with all of their cards.
const MEMBERS: usize = 64;

/// Size of the table in the file: the peak, then the bytes of each member, as little-endian 64-bit numbers.
const BYTES: usize = 8 * (1 + MEMBERS);

/// One member of a shared card.
#[derive(Debug)]
pub(super) struct Shared {
    path: PathBuf,
    /// The mutex is needed because a lock on a file belongs to the file's handle, and not to a thread.
    file: Mutex<File>,
    place: usize,
    /// This file stays locked until the value is dropped or the process ends.
    _alive: File,
}

/// The contents of the file.
struct Table {
    /// The maximum of the bytes that all members together had at once.
    peak: u64,
    members: [u64; MEMBERS],
}

impl Shared {
    /// Becomes a member of the card that this file describes. The file is created if it does not exist.
    pub(super) fn join(path: &Path) -> io::Result<Self> {
        let mut file = open(path, true)?;
        wait_for(&file)?;
        let joined = Self::take_place(path, &mut file);
        file.unlock()?;
        let (place, alive) = joined?;
        Ok(Self { path: path.to_owned(), file: Mutex::new(file), place, _alive: alive })
    }

    fn take_place(path: &Path, file: &mut File) -> io::Result<(usize, File)> {
        let mut table = Table::read(file)?;
        for place in 0..MEMBERS {
            let alive = open(&beside(path, place), true)?;
            match alive.try_lock() {
                Ok(()) => {
                    table.members[place] = 0;
                    table.write(file)?;
                    return Ok((place, alive));
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        let full = format!("{MEMBERS} cards share it already");
        Err(io::Error::other(full))
    }

    /// Takes `bytes`, unless all members together would then have more than `limit` bytes.
    pub(super) fn take(&self, bytes: u64, limit: u64) -> io::Result<bool> {
        self.change(|table| {
            let sum = table.sum().saturating_add(bytes);
            let fits = sum <= limit;
            if fits {
                // This cannot overflow: the member has at most as many bytes as all members together.
                table.members[self.place] += bytes;
                table.peak = table.peak.max(sum);
            }
            fits
        })
    }

    pub(super) fn give_back(&self, bytes: u64) -> io::Result<()> {
        self.change(|table| {
            let mine = &mut table.members[self.place];
            *mine = mine.saturating_sub(bytes);
        })
    }

    /// Bytes that all members have now.
    pub(super) fn used(&self) -> io::Result<u64> {
        self.change(|table| table.sum())
    }

    /// The maximum of the bytes that all members had at once since the file was made.
    pub(super) fn peak(&self) -> io::Result<u64> {
        self.change(|table| table.peak)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> io::Result<T> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        wait_for(&file)?;
        let changed = Table::read(&mut file).and_then(|mut table| {
            self.bury(&mut table);
            let answer = change(&mut table);
            table.write(&mut file)?;
            Ok(answer)
        });
        file.unlock()?;
        changed
    }

    /// Frees the bytes of members that no longer live.
    fn bury(&self, table: &mut Table) {
        for (place, bytes) in table.members.iter_mut().enumerate() {
            if *bytes > 0 && place != self.place && is_dead(&beside(&self.path, place)) {
                *bytes = 0;
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let place = self.place;
        // If this fails, the other members find that the lock is free, and free the bytes themselves.
        let _ = self.change(|table| {
            table.members[place] = 0;
            // Meanwhile no other member can take this place: for that it would need the table's lock, which this thread
            // has.
            let _ = fs::remove_file(beside(&self.path, place));
        });
    }
}

impl Table {
    /// Reads the table. If the file is shorter, the missing numbers are 0.
    fn read(file: &mut File) -> io::Result<Self> {
        let mut bytes = Vec::with_capacity(BYTES);
        file.seek(SeekFrom::Start(0))?;
        file.take(BYTES as u64).read_to_end(&mut bytes)?;
        bytes.resize(BYTES, 0);
        let (words, _) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        Ok(Self {
            peak: words.next().unwrap_or_default(),
            members: std::array::from_fn(|_| words.next().unwrap_or_default()),
        })
    }

    /// Writes the whole table with one call, and the table is smaller than a page. So if the process is killed
    /// meanwhile, the file has the old table or the new one.
    fn write(&self, file: &mut File) -> io::Result<()> {
        let words = std::iter::once(&self.peak).chain(&self.members);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&bytes)
    }

    fn sum(&self) -> u64 {
        self.members.iter().copied().fold(0, u64::saturating_add)
    }
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(create).truncate(false).open(path)
}

/// Waits for the lock of a file, even if signals interrupt the wait.
fn wait_for(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// The file of the member at this place. Its lock is held as long as the member lives.
fn beside(path: &Path, place: usize) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{place}"));
    name.into()
}

/// Whether nobody holds the lock. If a lock cannot be checked, its member counts as alive: it is better to report too
/// little free memory than too much.
fn is_dead(path: &Path) -> bool {
    match open(path, false) {
        Ok(file) => file.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_dropped_leaves_its_place_and_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card");
        let members: Vec<_> = (0..MEMBERS).map(|_| Shared::join(&path).unwrap()).collect();
        assert!(members[7].take(100, 100).unwrap());
        assert!(Shared::join(&path).is_err(), "more than there are places");
        drop(members);
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(Shared::join(&path).unwrap().used().unwrap(), 0);
    }

    #[test]
    fn bytes_whose_owner_is_gone_are_free_and_a_file_that_ends_early_counts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card");
        fs::write(&path, [1, 2, 3]).unwrap();
        assert_eq!(Shared::join(&path).unwrap().used().unwrap(), 0);
        let mut table = Table::read(&mut open(&path, true).unwrap()).unwrap();
        table.members[7] = 70;
        table.members[8] = 80;
        table.write(&mut open(&path, true).unwrap()).unwrap();
        // One former member has left a file without a lock, and another has left no file.
        fs::write(beside(&path, 7), "").unwrap();
        let shared = Shared::join(&path).unwrap();
        assert!(shared.take(100, 100).unwrap());
    }

    #[test]
    fn threads_that_take_and_give_back_never_have_more_than_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card");
        let shared = Shared::join(&path).unwrap();
        std::thread::scope(|scope| {
            for step in 1..=4_u64 {
                let (shared, other) = (&shared, Shared::join(&path).unwrap());
                scope.spawn(move || {
                    for round in 0..50 {
                        let bytes = 10 * step + round;
                        for member in [shared, &other] {
                            if member.take(bytes, 100).unwrap() {
                                assert!(member.used().unwrap() <= 100);
                                member.give_back(bytes).unwrap();
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(shared.used().unwrap(), 0);
        assert!(shared.peak().unwrap() <= 100);
    }
}
