//! Pictures and sounds of a request. In: data URLs, base64 and addresses. Out: decoded pictures and sounds.
//!
//! The bytes may come from anybody. They are decoded in Rust, with limits (autoplace-media), and the files take turns
//! ([`decoding`]). All requests that are being answered share one limit for their pixels and samples.
//!
//! [`decoding`]: super::decoding

use std::cell::{Cell, RefCell};

use autoplace::chat::Media;
use autoplace::load::Model;

use super::error::ApiError;
#[cfg(feature = "media")]
use super::media_hosts::MediaHosts;
#[cfg(feature = "media")]
pub(super) use decode::Reserved;

/// Maximum number of pictures and sounds in a request. Each of them is scaled before the length of the prompt is known.
const MAX_MEDIA: usize = 64;
/// Maximum number of pictures of one request that the server fetches.
const MAX_FETCHED: usize = 16;

/// The pictures and sounds of a request. They are decoded and counted here.
#[derive(Debug, Default)]
pub(super) struct Seen<'h> {
    has_projector: bool,
    /// How many pictures and sounds the request has so far, and how many of these were fetched.
    media: Cell<usize>,
    fetched: Cell<usize>,
    /// The places of the decoded pictures and sounds, in order.
    places: RefCell<Vec<String>>,
    #[cfg(feature = "media")]
    hosts: Option<&'h MediaHosts>,
    #[cfg(feature = "media")]
    reserved: RefCell<Reserved>,
    #[cfg(not(feature = "media"))]
    hosts: std::marker::PhantomData<&'h ()>,
}

impl Seen<'_> {
    pub(super) fn by(model: &Model) -> Self {
        Self { has_projector: model.has_projector(), ..Self::default() }
    }

    /// Decodes the picture in a data URL, or at an address from which pictures may be fetched.
    pub(super) fn image(&self, url: &str, place: &str) -> Result<Media, ApiError> {
        self.check("images", place)?;
        self.decoded_image(url, place).inspect(|_| self.places.borrow_mut().push(place.to_owned()))
    }

    fn decoded_image(&self, url: &str, place: &str) -> Result<Media, ApiError> {
        let Some((kind, data)) = url.strip_prefix("data:").and_then(|rest| rest.split_once(',')) else {
            count(&self.fetched, MAX_FETCHED, "fetched images", place)?;
            return self.image_at(url, place);
        };
        if !kind.to_ascii_lowercase().ends_with(";base64") {
            return Err(ApiError::invalid(place, format!("{place}: the data of an image is base64 (`;base64,`)")));
        }
        self.image_in(data, place)
    }

    /// Decodes the sound in a base64 text.
    pub(super) fn audio(&self, data: &str, place: &str) -> Result<Media, ApiError> {
        self.check("sound", place)?;
        // Some clients send a data URL here too.
        let data = data.strip_prefix("data:").and_then(|rest| rest.split_once(',')).map_or(data, |(_, data)| data);
        self.sound_in(data, place).inspect(|_| self.places.borrow_mut().push(place.to_owned()))
    }

    /// The places of the request's pictures and sounds, in order.
    pub(super) fn places(&self) -> Vec<String> {
        self.places.borrow().clone()
    }

    /// If the model has no projector, refuses media before anything is decoded.
    fn check(&self, what: &str, place: &str) -> Result<(), ApiError> {
        if self.has_projector {
            return count(&self.media, MAX_MEDIA, "images and sounds", place);
        }
        let message = format!("{place}: the model takes no {what}: it was loaded without a projector (--mmproj FILE)");
        Err(ApiError::unsupported(place, message))
    }
}

/// Counts one more picture or sound of the request. Refuses it if there are too many.
fn count(so_far: &Cell<usize>, most: usize, what: &str, place: &str) -> Result<(), ApiError> {
    so_far.set(so_far.get() + 1);
    if so_far.get() <= most {
        return Ok(());
    }
    Err(ApiError::invalid(place, format!("{place}: a request has at most {most} {what}")))
}

#[cfg(feature = "media")]
mod decode {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    use autoplace::media::{Error, ImageLimits, SoundLimits};
    use autoplace::{Image, Sound};
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    use super::{ApiError, Media, MediaHosts, Seen};
    use crate::decoding::{MAX_MEMORY, TURNS, share};

    /// Maximum bytes of the pixels and samples of one request: three pictures of 28 million pixels, or 23 minutes of
    /// sound.
    const MAX_OF_REQUEST: u64 = 256 << 20;
    /// Maximum bytes of pixels and samples of all requests that are being answered.
    const MAX_OF_ALL: u64 = 1 << 30;
    const MAX_TIME: Duration = Duration::from_secs(10);

    /// Bytes of heap that decoding needs for each second of sound: 48,000 samples of four bytes. If the file does not
    /// state its length, decoding needs three times as many bytes for a moment (autoplace-media, `SoundLimits`).
    const SOUND_SECOND: u64 = 4 * 48_000;
    const SOUND_MOMENT: u64 = 3;

    static IN_USE: AtomicU64 = AtomicU64::new(0);

    /// Bytes that are reserved for the pixels and samples of a request, until its answer ends.
    #[derive(Debug, Default)]
    pub(in super::super) struct Reserved(u64);

    impl Drop for Reserved {
        fn drop(&mut self) {
            IN_USE.fetch_sub(self.0, Relaxed);
        }
    }

    impl<'h> Seen<'h> {
        pub(in super::super) fn asking(self, hosts: Option<&'h MediaHosts>) -> Self {
            Self { hosts, ..self }
        }

        pub(in super::super) fn into_reserved(self) -> Reserved {
            self.reserved.into_inner()
        }

        pub(super) fn image_at(&self, url: &str, place: &str) -> Result<Media, ApiError> {
            let refused = |reason| ApiError::unsupported(place, format!("{place}: {reason}"));
            let Some(hosts) = self.hosts else {
                return Err(refused("an image is a data URL, `data:image/png;base64,...`".to_owned()));
            };
            let bytes = hosts.fetch(url).map_err(refused)?;
            self.decode_image(&bytes, place)
        }

        pub(super) fn image_in(&self, data: &str, place: &str) -> Result<Media, ApiError> {
            self.decode_image(&bytes(data, place)?, place)
        }

        fn decode_image(&self, bytes: &[u8], place: &str) -> Result<Media, ApiError> {
            let mut limits = ImageLimits::default();
            limits.pixels = limits.pixels.min(self.left() / 3);
            (limits.memory, limits.time) = (share(), MAX_TIME);
            let mut turn = TURNS.take(limits.memory)?;
            let mut image = Image::from_bytes_within(bytes, &limits);
            // This error states the needed bytes, before any pixel is decoded.
            if let Err(Error::TooLarge { unit: "bytes of memory", needed, .. }) = image {
                limits.memory = needed.min(MAX_MEMORY);
                drop(turn);
                turn = TURNS.take(limits.memory)?;
                image = Image::from_bytes_within(bytes, &limits);
            }
            let image = image.map_err(|error| ApiError::invalid(place, format!("{place}: {error}")))?;
            self.take(image.rgb().len())?;
            drop(turn);
            Ok(image.into())
        }

        pub(super) fn sound_in(&self, data: &str, place: &str) -> Result<Media, ApiError> {
            let mut limits = SoundLimits::default();
            let seconds = self.left() / SOUND_SECOND;
            let most = limits.seconds.min(u32::try_from(seconds).unwrap_or(u32::MAX));
            let short = u32::try_from(share() / (SOUND_SECOND * SOUND_MOMENT)).unwrap_or(u32::MAX);
            (limits.seconds, limits.time) = (most.min(short), MAX_TIME);
            let bytes = bytes(data, place)?;
            let mut turn = TURNS.take(share())?;
            let mut sound = Sound::from_bytes_within(&bytes, &limits);
            if matches!(sound, Err(Error::TooLarge { .. })) && limits.seconds < most {
                limits.seconds = most;
                drop(turn);
                turn = TURNS.take(u64::from(most) * SOUND_SECOND * SOUND_MOMENT)?;
                sound = Sound::from_bytes_within(&bytes, &limits);
            }
            let sound = sound.map_err(|error| ApiError::invalid(place, format!("{place}: {error}")))?;
            self.take(size_of_val(sound.samples()))?;
            drop(turn);
            Ok(sound.into())
        }

        fn left(&self) -> u64 {
            MAX_OF_REQUEST.saturating_sub(self.reserved.borrow().0)
        }

        /// Reserves memory for decoded pixels or samples.
        pub(super) fn take(&self, bytes: usize) -> Result<(), ApiError> {
            let bytes = bytes as u64;
            let in_use = IN_USE.fetch_add(bytes, Relaxed) + bytes;
            self.reserved.borrow_mut().0 += bytes;
            if in_use <= MAX_OF_ALL {
                return Ok(());
            }
            let message = "images and sounds of other requests take all the memory for them: ask again later";
            Err(ApiError::new(503, message).with_code("overloaded"))
        }
    }

    fn bytes(data: &str, place: &str) -> Result<Vec<u8>, ApiError> {
        let refused = |error| ApiError::invalid(place, format!("{place}: not valid base64: {error}"));
        BASE64_STANDARD.decode(data.trim()).map_err(refused)
    }
}

#[cfg(not(feature = "media"))]
mod no_decode {
    use super::{ApiError, Media, Seen};

    fn refused(place: &str) -> Result<Media, ApiError> {
        let message = format!("{place}: this server was built without images and sound (feature `media`)");
        Err(ApiError::unsupported(place, message))
    }

    impl Seen<'_> {
        pub(super) fn image_at(&self, _: &str, place: &str) -> Result<Media, ApiError> {
            refused(place)
        }

        pub(super) fn image_in(&self, _: &str, place: &str) -> Result<Media, ApiError> {
            refused(place)
        }

        pub(super) fn sound_in(&self, _: &str, place: &str) -> Result<Media, ApiError> {
            refused(place)
        }
    }
}

#[cfg(all(test, feature = "media"))]
mod tests {
    use super::{MAX_FETCHED, MAX_MEDIA, Seen};

    #[test]
    fn pixels_of_a_request_and_of_all_requests_have_bounds() {
        // A picture of one pixel with 24 bits.
        let mut file = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0".to_vec();
        file.resize(58, 0);
        let url = format!("data:image/bmp;base64,{}", base64::Engine::encode(&base64::prelude::BASE64_STANDARD, file));
        let seen = || Seen { has_projector: true, ..Seen::default() };
        let full = seen();
        assert!(full.image(&url, "a").is_ok());
        full.take((256 << 20) - 3).unwrap();
        let refused = full.image(&url, "a").unwrap_err();
        assert!(refused.status == 400 && refused.message.contains("at most 0 are allowed"), "{refused}");
        // The bytes of other requests are released when their answers end.
        let others: Vec<_> = (0..3).map(|_| seen()).collect();
        others.iter().for_each(|other| other.take(256 << 20).unwrap());
        let refused = seen().image(&url, "a").unwrap_err();
        assert_eq!((refused.status, refused.code), (503, Some("overloaded")));
        drop(others);
        assert!(seen().image(&url, "a").is_ok());
    }

    #[test]
    fn the_numbers_of_images_and_of_fetches_are_limited() {
        let seen = || Seen { has_projector: true, ..Seen::default() };
        let many = seen();
        for _ in 0..MAX_MEDIA {
            let error = many.image("data:image/png;base64,", "a").unwrap_err();
            assert!(!error.message.contains("at most"), "{error}");
        }
        let refused = many.audio("", "messages[3].content[1]").unwrap_err();
        let words = "messages[3].content[1]: a request has at most 64 images and sounds";
        assert_eq!((refused.status, refused.message.as_str()), (400, words));
        let fetching = seen();
        for _ in 0..MAX_FETCHED {
            // No host is allowed.
            assert!(fetching.image("https://example.com/a.png", "a").unwrap_err().message.contains("data URL"));
        }
        let refused = fetching.image("https://example.com/a.png", "a").unwrap_err();
        assert!(refused.status == 400 && refused.message.contains("at most 16 fetched images"), "{refused}");
    }
}
