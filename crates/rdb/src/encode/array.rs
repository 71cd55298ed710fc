//! Arrays: a count, the cursor of insertions, and the values with their indices.

use super::{Encoder, Out, put_length};
use crate::item::Item;
use crate::kind;
use crate::kind::array::{FLOAT, INT, LONG_STRING, SHORT_STRING};
use crate::numeral::Numeral;

/// Longest string that Redis keeps in a word.
const SHORT_MAX: usize = 7;

/// Writes the values of an array.
#[must_use = "what is not finished is not written"]
pub struct ArrayWriter<'e, O: Out> {
    encoder: &'e mut Encoder<O>,
    left: u64,
}

impl<'e, O: Out> ArrayWriter<'e, O> {
    pub(super) fn new(encoder: &'e mut Encoder<O>, count: u64, cursor: Option<u64>) -> Self {
        encoder.begin(kind::ARRAY);
        encoder.put_length(count);
        encoder.put_length(u64::from(cursor.is_some()));
        if let Some(cursor) = cursor {
            encoder.put_length(cursor);
        }
        ArrayWriter { encoder, left: count }
    }

    /// Writes a value in the form in which Redis keeps it. Indices ascend.
    pub fn push(&mut self, index: u64, value: &[u8]) {
        self.left = self.left.checked_sub(1).expect("no more values than announced");
        let Encoder { out, strings, .. } = &mut *self.encoder;
        put_length(out, index);
        match Numeral::of(value) {
            Some(Numeral::Int(number)) => {
                put_length(out, INT);
                out.put(&number.to_le_bytes());
            }
            Some(Numeral::Float(number)) => {
                put_length(out, FLOAT);
                out.put(&number.to_le_bytes());
            }
            None => {
                put_length(out, if value.len() <= SHORT_MAX { SHORT_STRING } else { LONG_STRING });
                strings.put(out, Item::Bytes(value));
            }
        }
    }

    pub fn finish(self) {
        assert_eq!(self.left, 0, "as many values as announced");
    }
}
