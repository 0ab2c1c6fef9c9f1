//! One file of a repository. In: a range. Out: its bytes.

use std::io::Read;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use crate::error::Error;
use crate::http::{Failure, Http, broken, cut, quoted, shown};
use crate::repository::{Place, RemoteFile};

/// A file on a hub, and the address of its last redirect, which stays valid for some time.
pub(crate) struct Remote<'a> {
    http: &'a Http,
    pub(crate) file: &'a RemoteFile,
    url: String,
    location: Option<String>,
}

impl<'a> Remote<'a> {
    pub(crate) fn new(http: &'a Http, place: &Place, file: &'a RemoteFile) -> Self {
        let Place { repository, commit, .. } = place;
        let path: Vec<String> = file.name.split('/').map(quoted).collect();
        // The address contains the commit, because a branch may change between two requests.
        let url = format!("{}/{repository}/resolve/{commit}/{}", http.endpoint, path.join("/"));
        Self { http, file, url, location: None }
    }

    /// The address as messages show it.
    pub(crate) fn shown(&self) -> String {
        shown(&self.url)
    }

    /// Requests a range once. The range must not be empty. The reader may end too early.
    pub(crate) fn open(&mut self, range: &Range<u64>) -> Result<impl Read + use<>, Failure> {
        let kept = self.location.take();
        let answer = match self.http.get(kept.as_ref().unwrap_or(&self.url), Some(range)) {
            Err(Failure::Final(Error::Refused { .. } | Error::Missing { .. })) if kept.is_some() => {
                return Err(Failure::Expired);
            }
            other => other?,
        };
        let location = answer.url.clone();
        let body = answer.bytes_from(range.start, self.file.bytes)?;
        self.location = Some(location);
        Ok(body.take(range.end - range.start))
    }

    /// Reads a range. If it extends beyond the end of the file, it is cut there.
    pub(crate) fn read(&mut self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let range = range.start..range.end.min(self.file.bytes);
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let (http, url) = (self.http, self.shown());
        http.patiently(&AtomicBool::new(false), |_| {
            let mut bytes = Vec::new();
            self.open(&range)?.read_to_end(&mut bytes).map_err(|error| broken(&url, &error))?;
            if (bytes.len() as u64) < range.end - range.start { Err(cut(&url)) } else { Ok(bytes) }
        })
    }
}
