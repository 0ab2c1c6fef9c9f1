//! A hub and an empty cache.

use std::path::Path;
use std::time::Duration;

use autoplace_hub::{Error, Hub, Name, Repository};
use tempfile::TempDir;

use test_support::hub_server::{Content, Server};

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) cache: TempDir,
}

impl World {
    pub(crate) fn new<'a>(files: impl IntoIterator<Item = (&'a str, Content)>) -> Self {
        Self { server: Server::new(files), cache: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn hub(&self) -> Hub {
        hub(&self.server.endpoint(), self.cache.path())
    }
}

pub(crate) fn hub(endpoint: &str, cache: &Path) -> Hub {
    Hub::new(endpoint, cache).patience(Duration::from_secs(20), 3, Duration::from_millis(1))
}

pub(crate) fn repository(hub: &Hub) -> Result<Repository, Error> {
    hub.repository(&"hf:some/thing".parse::<Name>().unwrap())
}
