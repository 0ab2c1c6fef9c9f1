//! Pictures: the pixels that decoding returns.

use autoplace_media::{Error, Image};
use image::{DynamicImage, GrayAlphaImage, GrayImage, ImageFormat, LumaA, Rgb, RgbImage, Rgba, RgbaImage};

use crate::jpeg::FlatJpeg;
use crate::pictures::{
    Png, colourful, encoded, jpeg_with_orientation, png_with_orientation, translucent, webp_with_orientation,
};

const EXACT: [ImageFormat; 3] = [ImageFormat::Png, ImageFormat::WebP, ImageFormat::Bmp];

/// The pixels of a file.
fn pixels(bytes: &[u8]) -> Vec<[u8; 3]> {
    Image::from_bytes(bytes).unwrap().rgb().as_chunks().0.to_vec()
}

#[test]
fn every_format_gives_its_pixels_and_exact_formats_give_one_hash() {
    let picture = colourful(13, 7);
    let images = EXACT.map(|format| Image::from_bytes(&encoded(&picture, format)).unwrap());
    for image in &images {
        assert_eq!((image.width(), image.height()), (13, 7));
        assert_eq!(image.rgb(), picture.as_bytes());
        assert_eq!(image.hash(), images[0].hash());
    }
    for format in [ImageFormat::Jpeg, ImageFormat::Gif] {
        let flat = DynamicImage::from(RgbImage::from_pixel(13, 7, Rgb([200, 100, 50])));
        for pixel in pixels(&encoded(&flat, format)) {
            assert!(pixel.iter().zip([200, 100, 50]).all(|(a, b)| a.abs_diff(b) <= 3), "{format:?}: {pixel:?}");
        }
    }
    let turned = Image::from_rgb(7, 13, picture.as_bytes().to_vec()).unwrap();
    assert_ne!(turned.hash(), images[0].hash());
    assert_ne!(turned, images[0]);
}

#[test]
fn each_orientation_of_exif_makes_the_picture_upright() {
    const UPRIGHT: [(u8, &[&str]); 8] = [
        (1, &["abc", "def"]),
        (2, &["cba", "fed"]),
        (3, &["fed", "cba"]),
        (4, &["def", "abc"]),
        (5, &["ad", "be", "cf"]),
        (6, &["da", "eb", "fc"]),
        (7, &["fc", "eb", "da"]),
        (8, &["cf", "be", "ad"]),
    ];
    let stored = RgbImage::from_fn(3, 2, |x, y| Rgb([b"abcdef"[(y * 3 + x) as usize]; 3]));
    for (orientation, rows) in UPRIGHT {
        for file in [png_with_orientation(&stored, orientation), webp_with_orientation(&stored, orientation)] {
            let image = Image::from_bytes(&file).unwrap();
            assert_eq!((image.width() as usize, image.height() as usize), (rows[0].len(), rows.len()));
            let letters: Vec<u8> = image.rgb().iter().step_by(3).copied().collect();
            assert_eq!(letters.escape_ascii().to_string(), rows.concat(), "orientation {orientation}");
        }
    }
    // In the file, black is on the left. With orientation 6, the left side of the file is at the top of the picture.
    let stored = RgbImage::from_fn(16, 8, |x, _| Rgb([if x < 8 { 0 } else { 255 }; 3]));
    let image = Image::from_bytes(&jpeg_with_orientation(&stored, 6)).unwrap();
    assert_eq!((image.width(), image.height()), (8, 16));
    assert!(image.rgb()[0] < 10 && image.rgb()[8 * 15 * 3] > 245);
    // An invalid orientation changes nothing.
    assert_eq!(Image::from_bytes(&jpeg_with_orientation(&stored, 9)).unwrap().width(), 16);
}

#[test]
fn transparency_shows_white() {
    let image = RgbaImage::from_fn(3, 1, |x, _| Rgba([255, 0, 60, [255, 128, 0][x as usize]]));
    let white = [255, 255, 255];
    for format in EXACT {
        let found = pixels(&encoded(&image.clone().into(), format));
        assert_eq!(found, [[255, 0, 60], [255, 127, 157], white], "{format:?}");
    }
    let found = pixels(&encoded(&image.into(), ImageFormat::Gif));
    assert_eq!(found[2], white);
    let grey = GrayAlphaImage::from_fn(2, 1, |x, _| LumaA([0, [255, 51][x as usize]]));
    assert_eq!(pixels(&encoded(&grey.into(), ImageFormat::Png)), [[0; 3], [204; 3]]);
}

#[test]
fn sixteen_bits_are_rounded_and_grey_is_repeated() {
    let wide = image::ImageBuffer::<Rgb<u16>, _>::from_raw(2, 1, vec![0, 128, 129, 65_535, 65_407, 0x8080]).unwrap();
    assert_eq!(pixels(&encoded(&wide.into(), ImageFormat::Png)), [[0, 0, 1], [255, 255, 128]]);
    let clear = image::ImageBuffer::<Rgba<u16>, _>::from_raw(1, 1, vec![0, 65_535, 0x8080, 0x8000]).unwrap();
    assert_eq!(pixels(&encoded(&clear.into(), ImageFormat::Png)), [[127, 255, 191]]);
    let grey = image::ImageBuffer::<image::Luma<u16>, _>::from_raw(2, 1, vec![0x4040, 0x40ff]).unwrap();
    assert_eq!(pixels(&encoded(&grey.into(), ImageFormat::Png)), [[0x40; 3], [0x41; 3]]);
    let grey = GrayImage::from_raw(2, 1, vec![3, 200]).unwrap();
    assert_eq!(pixels(&encoded(&grey.into(), ImageFormat::Png)), [[3; 3], [200; 3]]);
}

#[test]
fn palettes_of_few_bits_and_their_transparent_colours_are_looked_up() {
    let palette = [255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9];
    for (bits, row) in [(2, vec![0, 0b00_01_10_11]), (4, vec![0, 0x01, 0x23]), (8, vec![0, 0, 1, 2, 3])] {
        let png = Png { size: (4, 1), bits, colour: 3, palette: &palette, transparent: &[255, 255, 0], rows: &row };
        assert_eq!(pixels(&png.encoded()), [[255, 0, 0], [0, 255, 0], [255, 255, 255], [9, 9, 9]], "{bits} bits");
    }
    let png = Png { size: (3, 1), bits: 1, colour: 0, palette: &[], transparent: &[], rows: &[0, 0b101_00000] };
    assert_eq!(pixels(&png.encoded()), [[255; 3], [0; 3], [255; 3]]);
}

#[test]
fn four_inks_become_three_colours_as_other_programs_do_it() {
    // Adobe's programs store the inks inverted: 255 means no ink.
    let cmyk = FlatJpeg { size: (9, 9), values: &[255, 128, 0, 200], is_progressive: false, adobe: Some(0) };
    for image in [&cmyk, &FlatJpeg { is_progressive: true, ..cmyk }, &FlatJpeg { adobe: None, ..cmyk }] {
        let found = pixels(&image.encoded());
        assert_eq!(found.len(), 81);
        assert!(found.iter().all(|pixel| *pixel == [200, 100, 0]), "{:?}", found[0]);
    }
    // If there is no colour, the luminance is the inverted ink.
    let ycck = FlatJpeg { size: (20, 9), values: &[55, 128, 128, 255], is_progressive: false, adobe: Some(2) };
    assert_eq!(pixels(&ycck.encoded())[0], [200; 3]);
}

#[test]
fn an_animation_is_its_first_frame() {
    let frame = |colour| image::Frame::new(RgbaImage::from_pixel(4, 4, Rgba(colour)));
    let mut gif = Vec::new();
    let mut encoder = image::codecs::gif::GifEncoder::new(&mut gif);
    encoder.encode_frames([frame([255, 0, 0, 255]), frame([0, 0, 255, 255])]).unwrap();
    drop(encoder);
    assert_eq!(pixels(&gif), [[255, 0, 0]; 16]);
}

#[test]
fn a_file_is_known_by_its_bytes_and_an_error_names_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("photo.txt");
    std::fs::write(&path, encoded(&translucent(5, 5), ImageFormat::Png)).unwrap();
    assert_eq!(Image::open(&path).unwrap().width(), 5);
    for (bytes, says) in [
        (b"".as_slice(), "it is empty"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "it is HEIC, the format of Apple's cameras: convert it to JPEG"),
        (b"II*\0\x08\0\0\0", "it is Tiff"),
        (b"<svg xmlns=", "it is a text, such as SVG or HTML"),
        (b"\x01\x02garbage", "it begins with \"\\x01\\x02garbag\""),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = Image::open(&path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: not a PNG, JPEG, WebP, GIF or BMP file: {says}", path.display()));
    }
    let missing = Image::open(folder.path().join("none.png")).unwrap_err();
    assert!(matches!(missing, Error::Io { .. }), "{missing}");
}

#[test]
fn a_truncated_file_is_an_error_and_no_grey_picture() {
    let picture = colourful(40, 40);
    for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp] {
        let file = encoded(&picture, format);
        let error = Image::from_bytes(&file[..file.len() * 2 / 3]).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{format:?}: {error}");
    }
}

#[test]
fn pixels_of_the_application_must_be_as_many_as_the_size_says() {
    let error = Image::from_rgb(2, 2, vec![0; 11]).unwrap_err();
    assert_eq!(error.to_string(), "image: 2 x 2 pixels are 12 bytes; there are 11");
    assert!(Image::from_rgb(0, 2, Vec::new()).is_err());
    assert!(Image::from_rgb(u32::MAX, u32::MAX, Vec::new()).is_err());
}
