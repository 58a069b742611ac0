// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fields of management attributes, which are numbers of any width at any bit offset.

/// A value in a range of bits. Bit 0 is the most significant bit of the first byte, as in the tables of the standard.
/// Bits beyond the end of the bytes read as 0 and are not written.
pub(crate) trait Field: Sized {
    /// Reads `bits` bits from bit `at` on.
    fn read(bytes: &[u8], at: usize, bits: usize) -> Self;
    /// Writes the low `bits` bits to bit `at` and the following ones.
    fn write(&self, bytes: &mut [u8], at: usize, bits: usize);
}

impl Field for u64 {
    fn read(bytes: &[u8], at: usize, bits: usize) -> Self {
        let mut value = 0;
        let (mut at, end) = (at, at + bits);
        while at < end {
            // All bits of this byte that belong to the field.
            let count = (8 - at % 8).min(end - at);
            let byte = bytes.get(at / 8).copied().unwrap_or(0);
            let part = byte >> (8 - at % 8 - count) & (0xff >> (8 - count));
            value = value << count | Self::from(part);
            at += count;
        }
        value
    }

    fn write(&self, bytes: &mut [u8], at: usize, bits: usize) {
        let (mut at, end) = (at, at + bits);
        while at < end {
            let count = (8 - at % 8).min(end - at);
            if let Some(byte) = bytes.get_mut(at / 8) {
                let shift = 8 - at % 8 - count;
                let mask = (0xff_u8 >> (8 - count)) << shift;
                let part = (*self >> (end - at - count)) as u8;
                *byte = *byte & !mask | part << shift & mask;
            }
            at += count;
        }
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Field for $number {
            fn read(bytes: &[u8], at: usize, bits: usize) -> Self {
                u64::read(bytes, at, bits) as Self
            }
            fn write(&self, bytes: &mut [u8], at: usize, bits: usize) {
                u64::from(*self).write(bytes, at, bits);
            }
        }
    )*};
}
numbers!(u8 u16 u32);

impl Field for bool {
    fn read(bytes: &[u8], at: usize, bits: usize) -> Self {
        u64::read(bytes, at, bits) != 0
    }
    fn write(&self, bytes: &mut [u8], at: usize, bits: usize) {
        u64::from(*self).write(bytes, at, bits);
    }
}

/// An array whose elements share `bits` equally.
impl<T: Field + Copy, const N: usize> Field for [T; N] {
    fn read(bytes: &[u8], at: usize, bits: usize) -> Self {
        std::array::from_fn(|index| T::read(bytes, at + index * (bits / N), bits / N))
    }
    fn write(&self, bytes: &mut [u8], at: usize, bits: usize) {
        for (index, element) in self.iter().enumerate() {
            element.write(bytes, at + index * (bits / N), bits / N);
        }
    }
}

/// Defines a number with named values. Other values are possible too, so that those from peers are written back
/// unchanged.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident($number:ty) { $($(#[$value_meta:meta])* $value:ident = $code:literal,)* }) => {
        $(#[$meta])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $number);

        impl $name {
            $($(#[$value_meta])* pub const $value: Self = Self($code);)*
        }

        impl crate::field::Field for $name {
            fn read(bytes: &[u8], at: usize, bits: usize) -> Self {
                Self(crate::field::Field::read(bytes, at, bits))
            }
            fn write(&self, bytes: &mut [u8], at: usize, bits: usize) {
                self.0.write(bytes, at, bits);
            }
        }
    };
}

/// Defines a structure of fields, each with its first bit and its number of bits.
macro_rules! layout {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $kind:ty = $at:literal, $bits:literal;)* }) => {
        $(#[$meta])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $kind,)*
        }

        impl $name {
            /// Reads the attribute from `bytes`. Bits beyond the end of the bytes are 0.
            pub fn read(bytes: &[u8]) -> Self {
                Self {
                    $($field: crate::field::Field::read(bytes, $at, $bits),)*
                }
            }

            /// Writes the attribute to `bytes`, and leaves bits without a field alone.
            pub fn write(&self, bytes: &mut [u8]) {
                $(crate::field::Field::write(&self.$field, bytes, $at, $bits);)*
            }

            /// Returns the first 64 bytes of the attribute, as the data of a subnet management packet.
            pub fn to_data(&self) -> [u8; 64] {
                let mut data = [0; 64];
                self.write(&mut data);
                data
            }

            /// Name, first bit and number of bits of each field, for tools that show or compare them.
            pub const FIELDS: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), $at, $bits),)*];
        }

        /// Returns the attribute with all fields 0.
        impl Default for $name {
            fn default() -> Self {
                Self::read(&[])
            }
        }
    };
}

pub(crate) use {layout, named};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bits_count_from_the_most_significant() {
        let bytes = [0x12, 0x34, 0x56, 0x78];
        assert_eq!(u64::read(&bytes, 4, 12), 0x234);
        assert_eq!(u16::read(&bytes, 12, 8), 0x45);
        assert!(bool::read(&bytes, 3, 1) == (0x12 & 0x10 != 0));
        assert_eq!(<[u8; 4]>::read(&bytes, 0, 16), [1, 2, 3, 4]);
        assert_eq!(u32::read(&bytes, 24, 16), 0x7800, "behind the end is 0");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_nothing_else_changes(
            before: [u8; 24], value: u64, at in 0_usize..200, bits in 1_usize..=64,
        ) {
            let value = value & (u64::MAX >> (64 - bits));
            let mut bytes = before;
            value.write(&mut bytes, at, bits);
            for bit in 0..24 * 8 {
                let one = |bytes: &[u8]| bytes[bit / 8] >> (7 - bit % 8) & 1;
                let wanted = if (at..at + bits).contains(&bit) {
                    (value >> (at + bits - 1 - bit)) as u8 & 1
                } else {
                    one(&before)
                };
                prop_assert_eq!(one(&bytes), wanted, "bit {}", bit);
            }
            if at + bits <= 24 * 8 {
                prop_assert_eq!(u64::read(&bytes, at, bits), value);
            }
        }
    }
}
