//! Writes JPEG files that have one colour and any number of components. Encoders for RGB cannot write such files.

/// A picture of one colour.
pub(crate) struct FlatJpeg<'a> {
    pub(crate) size: (u16, u16),
    /// The value of each component.
    pub(crate) values: &'a [u8],
    pub(crate) is_progressive: bool,
    /// The transformation in an Adobe segment: 0 is CMYK, 2 is YCCK.
    pub(crate) adobe: Option<u8>,
}

impl FlatJpeg<'_> {
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut file = vec![0xff, 0xd8];
        if let Some(transform) = self.adobe {
            let data = [b"Adobe\0\x64\0\0\0\0".as_slice(), &[transform]].concat();
            segment(&mut file, 0xee, &data);
        }
        // Every coefficient is multiplied by 1.
        segment(&mut file, 0xdb, &[&[0], [1; 64].as_slice()].concat());
        let count = u8::try_from(self.values.len()).unwrap();
        let (width, height) = self.size;
        let mut frame = vec![8];
        frame.extend([height.to_be_bytes(), width.to_be_bytes()].concat());
        frame.push(count);
        frame.extend((1..=count).flat_map(|id| [id, 0x11, 0]));
        segment(&mut file, if self.is_progressive { 0xc2 } else { 0xc0 }, &frame);
        // The Huffman code of each category is the category's number, in 4 bits.
        segment(&mut file, 0xc4, &[&[0x00, 0, 0, 0, 12], [0; 12].as_slice(), &(0..12).collect::<Vec<u8>>()].concat());
        // The end of a block is one bit.
        segment(&mut file, 0xc4, &[&[0x10, 1], [0; 15].as_slice(), &[0]].concat());
        let last = if self.is_progressive { 0 } else { 63 };
        let mut scan = vec![count];
        scan.extend((1..=count).flat_map(|id| [id, 0]));
        scan.extend([0, last, 0]);
        segment(&mut file, 0xda, &scan);
        file.extend(self.blocks());
        file.extend([0xff, 0xd9]);
        file
    }

    /// The blocks of all components, in turn. The first block of a component contains the colour. Each later block
    /// equals the first.
    fn blocks(&self) -> Vec<u8> {
        let mut bits = Vec::new();
        let mut put = |value: u32, count: u32| bits.extend((0..count).rev().map(|bit| value >> bit & 1 == 1));
        let units = u32::from(self.size.0.div_ceil(8)) * u32::from(self.size.1.div_ceil(8));
        for unit in 0..units {
            for value in self.values {
                // The mean of a block is an eighth of its coefficient, plus 128.
                let difference = if unit == 0 { (i32::from(*value) - 128) * 8 } else { 0 };
                let category = i32::BITS - difference.unsigned_abs().leading_zeros();
                put(category, 4);
                let negative = if difference < 0 { (1 << category) - 1 } else { 0 };
                put((difference + negative).unsigned_abs(), category);
                if !self.is_progressive {
                    put(0, 1);
                }
            }
        }
        let bytes = bits.chunks(8).map(|byte| {
            let ones = std::iter::repeat_n(&true, 8 - byte.len());
            byte.iter().chain(ones).fold(0, |sum, bit| sum << 1 | u8::from(*bit))
        });
        // A zero byte is written after 0xff. Otherwise, 0xff would begin a marker.
        bytes.flat_map(|byte| if byte == 0xff { vec![0xff, 0] } else { vec![byte] }).collect()
    }
}

fn segment(file: &mut Vec<u8>, marker: u8, data: &[u8]) {
    file.extend([0xff, marker]);
    file.extend(u16::try_from(data.len() + 2).unwrap().to_be_bytes());
    file.extend(data);
}
