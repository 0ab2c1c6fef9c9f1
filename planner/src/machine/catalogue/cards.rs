//! The table: what makers say of their cards.
//!
//! Sizes and bandwidths are those of the makers' own pages and data sheets: NVIDIA's GeForce, RTX workstation and
//! data-centre product pages; AMD's product pages for Radeon, Radeon PRO and Instinct; Intel's product
//! specifications (ark); Apple's technical specifications and newsroom. Where a later version of a card has the same
//! name and size and other memory (RTX 3060 Ti, RTX 4070), it is the first version's figure; NVIDIA's driver, which
//! is asked first, knows better.
//!
//! Multiprocessors are those of NVIDIA's data sheets and architecture white papers (where a page gives CUDA cores, 64
//! to a multiprocessor for P100, V100, Turing, A30 and A100, 128 for all others). Threads held by each: 2048 for
//! Pascal, Volta, A30, A100 and Hopper, 1024 for Turing, 1536 for the others (CUDA C++ Programming Guide, technical
//! specifications per compute capability).
//!
//! Laptop chips are other chips: they have rows of their own or none.

use super::Maker::{Amd, Apple, Intel, Nvidia};
use super::Memory::{Ecc, Host, Own};
use super::{Card, Maker, Memory};

const fn card(
    maker: Maker,
    name: &'static str,
    gib: &'static [u64],
    gb_per_second: u64,
    memory: Memory,
) -> Card {
    Card {
        maker,
        name,
        gib,
        gb_per_second,
        memory,
        resident_threads: None,
    }
}

impl Card {
    /// Adds its multiprocessors times the threads that each holds at once. Of sizes in one row, the most.
    const fn threads(mut self, threads: u32) -> Self {
        self.resident_threads = Some(threads);
        self
    }
}

/// Cards by maker, name as the driver gives it less the maker, sizes in GiB, and GB/s (1000-based).
#[rustfmt::skip]
pub(super) const CARDS: &[Card] = &[
    // NVIDIA GeForce. A size has a row of its own where it has a bandwidth of its own.
    card(Nvidia, "GeForce GTX 1050 Ti", &[4], 112, Own).threads(6 * 2048),
    card(Nvidia, "GeForce GTX 1060", &[3, 6], 192, Own).threads(10 * 2048),
    card(Nvidia, "GeForce GTX 1070", &[8], 256, Own).threads(15 * 2048),
    card(Nvidia, "GeForce GTX 1070 Ti", &[8], 256, Own).threads(19 * 2048),
    card(Nvidia, "GeForce GTX 1080", &[8], 320, Own).threads(20 * 2048),
    card(Nvidia, "GeForce GTX 1080 Ti", &[11], 484, Own).threads(28 * 2048),
    card(Nvidia, "GeForce GTX 1650 SUPER", &[4], 192, Own).threads(20 * 1024),
    card(Nvidia, "GeForce GTX 1660", &[6], 192, Own).threads(22 * 1024),
    card(Nvidia, "GeForce GTX 1660 SUPER", &[6], 336, Own).threads(22 * 1024),
    card(Nvidia, "GeForce GTX 1660 Ti", &[6], 288, Own).threads(24 * 1024),
    card(Nvidia, "GeForce RTX 2060", &[6, 12], 336, Own).threads(34 * 1024),
    card(Nvidia, "GeForce RTX 2060 SUPER", &[8], 448, Own).threads(34 * 1024),
    card(Nvidia, "GeForce RTX 2070", &[8], 448, Own).threads(36 * 1024),
    card(Nvidia, "GeForce RTX 2070 SUPER", &[8], 448, Own).threads(40 * 1024),
    card(Nvidia, "GeForce RTX 2080", &[8], 448, Own).threads(46 * 1024),
    card(Nvidia, "GeForce RTX 2080 Ti", &[11], 616, Own).threads(68 * 1024),
    card(Nvidia, "GeForce RTX 3050", &[6], 168, Own).threads(20 * 1536),
    card(Nvidia, "GeForce RTX 3050", &[8], 224, Own).threads(20 * 1536),
    card(Nvidia, "GeForce RTX 3060", &[8], 240, Own).threads(28 * 1536),
    card(Nvidia, "GeForce RTX 3060", &[12], 360, Own).threads(28 * 1536),
    card(Nvidia, "GeForce RTX 3060 Ti", &[8], 448, Own).threads(38 * 1536),
    card(Nvidia, "GeForce RTX 3070", &[8], 448, Own).threads(46 * 1536),
    card(Nvidia, "GeForce RTX 3070 Ti", &[8], 608, Own).threads(48 * 1536),
    card(Nvidia, "GeForce RTX 3080", &[10], 760, Own).threads(70 * 1536),
    card(Nvidia, "GeForce RTX 3080", &[12], 912, Own).threads(70 * 1536),
    card(Nvidia, "GeForce RTX 3080 Ti", &[12], 912, Own).threads(80 * 1536),
    card(Nvidia, "GeForce RTX 3090", &[24], 936, Own).threads(82 * 1536),
    card(Nvidia, "GeForce RTX 3090 Ti", &[24], 1_008, Own).threads(84 * 1536),
    card(Nvidia, "GeForce RTX 4060", &[8], 272, Own).threads(24 * 1536),
    card(Nvidia, "GeForce RTX 4060 Ti", &[8, 16], 288, Own).threads(34 * 1536),
    card(Nvidia, "GeForce RTX 4070", &[12], 504, Own).threads(46 * 1536),
    card(Nvidia, "GeForce RTX 4070 SUPER", &[12], 504, Own).threads(56 * 1536),
    card(Nvidia, "GeForce RTX 4070 Ti", &[12], 504, Own).threads(60 * 1536),
    card(Nvidia, "GeForce RTX 4070 Ti SUPER", &[16], 672, Own).threads(66 * 1536),
    card(Nvidia, "GeForce RTX 4080", &[16], 717, Own).threads(76 * 1536),
    card(Nvidia, "GeForce RTX 4080 SUPER", &[16], 736, Own).threads(80 * 1536),
    card(Nvidia, "GeForce RTX 4090", &[24], 1_008, Own).threads(128 * 1536),
    card(Nvidia, "GeForce RTX 4090 D", &[24], 1_008, Own).threads(114 * 1536),
    card(Nvidia, "GeForce RTX 5050", &[8], 320, Own).threads(20 * 1536),
    card(Nvidia, "GeForce RTX 5060", &[8], 448, Own).threads(30 * 1536),
    card(Nvidia, "GeForce RTX 5060 Ti", &[8, 16], 448, Own).threads(36 * 1536),
    card(Nvidia, "GeForce RTX 5070", &[12], 672, Own).threads(48 * 1536),
    card(Nvidia, "GeForce RTX 5070 Ti", &[16], 896, Own).threads(70 * 1536),
    card(Nvidia, "GeForce RTX 5080", &[16], 960, Own).threads(84 * 1536),
    card(Nvidia, "GeForce RTX 5090", &[32], 1_792, Own).threads(170 * 1536),
    card(Nvidia, "GeForce RTX 5090 D", &[32], 1_792, Own).threads(170 * 1536),
    // Laptops.
    card(Nvidia, "GeForce RTX 4050 Laptop GPU", &[6], 192, Own).threads(20 * 1536),
    card(Nvidia, "GeForce RTX 4060 Laptop GPU", &[8], 256, Own).threads(24 * 1536),
    card(Nvidia, "GeForce RTX 4070 Laptop GPU", &[8], 256, Own).threads(36 * 1536),
    card(Nvidia, "GeForce RTX 4080 Laptop GPU", &[12], 432, Own).threads(58 * 1536),
    card(Nvidia, "GeForce RTX 4090 Laptop GPU", &[16], 576, Own).threads(76 * 1536),
    card(Nvidia, "GeForce RTX 5070 Ti Laptop GPU", &[12], 672, Own).threads(46 * 1536),
    card(Nvidia, "GeForce RTX 5080 Laptop GPU", &[16], 896, Own).threads(60 * 1536),
    card(Nvidia, "GeForce RTX 5090 Laptop GPU", &[24], 896, Own).threads(82 * 1536),
    // NVIDIA workstation.
    card(Nvidia, "TITAN RTX", &[24], 672, Own).threads(72 * 1024),
    card(Nvidia, "TITAN V", &[12], 653, Own).threads(80 * 2048),
    card(Nvidia, "TITAN Xp", &[12], 548, Own).threads(30 * 2048),
    card(Nvidia, "Quadro RTX 4000", &[8], 416, Own).threads(36 * 1024),
    card(Nvidia, "Quadro RTX 5000", &[16], 448, Own).threads(48 * 1024),
    card(Nvidia, "RTX A2000", &[6, 12], 288, Own).threads(26 * 1536),
    card(Nvidia, "RTX A4000", &[16], 448, Own).threads(48 * 1536),
    card(Nvidia, "RTX A4500", &[20], 640, Own).threads(56 * 1536),
    card(Nvidia, "RTX A5000", &[24], 768, Own).threads(64 * 1536),
    card(Nvidia, "RTX A5500", &[24], 768, Own).threads(80 * 1536),
    card(Nvidia, "RTX A6000", &[48], 768, Own).threads(84 * 1536),
    card(Nvidia, "RTX 2000 Ada Generation", &[16], 224, Own).threads(22 * 1536),
    card(Nvidia, "RTX 4000 SFF Ada Generation", &[20], 280, Own).threads(48 * 1536),
    card(Nvidia, "RTX 4000 Ada Generation", &[20], 360, Own).threads(48 * 1536),
    card(Nvidia, "RTX 4500 Ada Generation", &[24], 432, Own).threads(60 * 1536),
    card(Nvidia, "RTX 5000 Ada Generation", &[32], 576, Own).threads(100 * 1536),
    card(Nvidia, "RTX 6000 Ada Generation", &[48], 960, Own).threads(142 * 1536),
    card(Nvidia, "RTX PRO 4000 Blackwell", &[24], 672, Own).threads(70 * 1536),
    card(Nvidia, "RTX PRO 4500 Blackwell", &[32], 896, Own).threads(82 * 1536),
    card(Nvidia, "RTX PRO 5000 Blackwell", &[48], 1_344, Own).threads(110 * 1536),
    card(Nvidia, "RTX PRO 6000 Blackwell Workstation Edition", &[96], 1_792, Own).threads(188 * 1536),
    card(Nvidia, "RTX PRO 6000 Blackwell Max-Q Workstation Edition", &[96], 1_792, Own).threads(188 * 1536),
    // NVIDIA data centre. Those with GDDR check their memory with a part of it unless told not to; HBM has bits of
    // its own for that.
    card(Nvidia, "Tesla P4", &[8], 192, Ecc).threads(20 * 2048),
    card(Nvidia, "Tesla P40", &[24], 346, Ecc).threads(30 * 2048),
    card(Nvidia, "Tesla P100-PCIE", &[12], 549, Own).threads(56 * 2048),
    card(Nvidia, "Tesla P100-PCIE", &[16], 732, Own).threads(56 * 2048),
    card(Nvidia, "Tesla P100-SXM2", &[16], 732, Own).threads(56 * 2048),
    card(Nvidia, "Tesla V100-PCIE", &[16, 32], 900, Own).threads(80 * 2048),
    card(Nvidia, "Tesla V100-SXM2", &[16, 32], 900, Own).threads(80 * 2048),
    card(Nvidia, "Tesla T4", &[16], 320, Ecc).threads(40 * 1024),
    card(Nvidia, "A2", &[16], 200, Ecc).threads(10 * 1536),
    card(Nvidia, "A10", &[24], 600, Ecc).threads(72 * 1536),
    card(Nvidia, "A10G", &[24], 600, Ecc).threads(80 * 1536),
    card(Nvidia, "A30", &[24], 933, Own).threads(56 * 2048),
    card(Nvidia, "A40", &[48], 696, Ecc).threads(84 * 1536),
    card(Nvidia, "A100-PCIE", &[40], 1_555, Own).threads(108 * 2048),
    card(Nvidia, "A100-PCIE", &[80], 1_935, Own).threads(108 * 2048),
    card(Nvidia, "A100-SXM4", &[40], 1_555, Own).threads(108 * 2048),
    card(Nvidia, "A100-SXM4", &[80], 2_039, Own).threads(108 * 2048),
    card(Nvidia, "L4", &[24], 300, Ecc).threads(58 * 1536),
    card(Nvidia, "L40", &[48], 864, Ecc).threads(142 * 1536),
    card(Nvidia, "L40S", &[48], 864, Ecc).threads(142 * 1536),
    card(Nvidia, "H100 PCIe", &[80], 2_000, Own).threads(114 * 2048),
    // The SXM card; its driver calls it by its memory.
    card(Nvidia, "H100 HBM3", &[80], 3_350, Own).threads(132 * 2048),
    card(Nvidia, "H100 NVL", &[94], 3_900, Own).threads(132 * 2048),
    card(Nvidia, "H200", &[141], 4_800, Own).threads(132 * 2048),
    card(Nvidia, "H200 NVL", &[141], 4_800, Own).threads(132 * 2048),
    card(Nvidia, "GB10", &[], 273, Host).threads(48 * 1536),
    // AMD.
    card(Amd, "Radeon VII", &[16], 1_024, Own),
    card(Amd, "Radeon RX 5700", &[8], 448, Own),
    card(Amd, "Radeon RX 5700 XT", &[8], 448, Own),
    card(Amd, "Radeon RX 6600", &[8], 224, Own),
    card(Amd, "Radeon RX 6600 XT", &[8], 256, Own),
    card(Amd, "Radeon RX 6650 XT", &[8], 280, Own),
    card(Amd, "Radeon RX 6700 XT", &[12], 384, Own),
    card(Amd, "Radeon RX 6750 XT", &[12], 432, Own),
    card(Amd, "Radeon RX 6800", &[16], 512, Own),
    card(Amd, "Radeon RX 6800 XT", &[16], 512, Own),
    card(Amd, "Radeon RX 6900 XT", &[16], 512, Own),
    card(Amd, "Radeon RX 6950 XT", &[16], 576, Own),
    card(Amd, "Radeon RX 7600", &[8], 288, Own),
    card(Amd, "Radeon RX 7600 XT", &[16], 288, Own),
    card(Amd, "Radeon RX 7700 XT", &[12], 432, Own),
    card(Amd, "Radeon RX 7800 XT", &[16], 624, Own),
    card(Amd, "Radeon RX 7900 GRE", &[16], 576, Own),
    card(Amd, "Radeon RX 7900 XT", &[20], 800, Own),
    card(Amd, "Radeon RX 7900 XTX", &[24], 960, Own),
    card(Amd, "Radeon RX 9060 XT", &[8, 16], 320, Own),
    card(Amd, "Radeon RX 9070", &[16], 640, Own),
    card(Amd, "Radeon RX 9070 XT", &[16], 640, Own),
    card(Amd, "Radeon PRO W6800", &[32], 512, Own),
    card(Amd, "Radeon PRO W7800", &[32], 576, Own),
    card(Amd, "Radeon PRO W7900", &[48], 864, Own),
    card(Amd, "Radeon AI PRO R9700", &[32], 640, Own),
    card(Amd, "Radeon 8050S", &[], 256, Host),
    card(Amd, "Radeon 8060S", &[], 256, Host),
    card(Amd, "Instinct MI50", &[16, 32], 1_024, Own),
    card(Amd, "Instinct MI60", &[32], 1_024, Own),
    card(Amd, "Instinct MI100", &[32], 1_229, Own),
    card(Amd, "Instinct MI210", &[64], 1_638, Own),
    card(Amd, "Instinct MI300X", &[192], 5_300, Own),
    card(Amd, "Instinct MI325X", &[256], 6_000, Own),
    // Intel.
    card(Intel, "Arc A380", &[6], 186, Own),
    card(Intel, "Arc A580", &[8], 512, Own),
    card(Intel, "Arc A750", &[8], 512, Own),
    card(Intel, "Arc A770", &[8], 512, Own),
    card(Intel, "Arc A770", &[16], 560, Own),
    card(Intel, "Arc B570", &[10], 380, Own),
    card(Intel, "Arc B580", &[12], 456, Own),
    card(Intel, "Arc Pro B50", &[16], 224, Own),
    card(Intel, "Arc Pro B60", &[24], 456, Own),
    // Apple. The sizes are the computer's memory. M3 Max and M4 Max have two widths of it, told apart by what
    // they are sold with.
    card(Apple, "M1", &[8, 16], 68, Host),
    card(Apple, "M1 Pro", &[16, 32], 200, Host),
    card(Apple, "M1 Max", &[32, 64], 400, Host),
    card(Apple, "M1 Ultra", &[64, 128], 800, Host),
    card(Apple, "M2", &[8, 16, 24], 100, Host),
    card(Apple, "M2 Pro", &[16, 32], 200, Host),
    card(Apple, "M2 Max", &[32, 64, 96], 400, Host),
    card(Apple, "M2 Ultra", &[64, 128, 192], 800, Host),
    card(Apple, "M3", &[8, 16, 24], 100, Host),
    card(Apple, "M3 Pro", &[18, 36], 150, Host),
    card(Apple, "M3 Max", &[36, 96], 300, Host),
    card(Apple, "M3 Max", &[48, 64, 128], 400, Host),
    card(Apple, "M3 Ultra", &[96, 256, 512], 819, Host),
    card(Apple, "M4", &[16, 24, 32], 120, Host),
    card(Apple, "M4 Pro", &[24, 48, 64], 273, Host),
    card(Apple, "M4 Max", &[36], 410, Host),
    card(Apple, "M4 Max", &[48, 64, 128], 546, Host),
    card(Apple, "M5", &[16, 24, 32], 153, Host),
];
