//! JSON from clients that is read into a struct.
//!
//! serde's derive also takes an array for a struct, as the values of its fields in order: a request of
//! a client was then one that the client did not write, and two versions of the gateway could read it
//! differently. So structs that clients send are read by [`object`], which takes objects only.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads a JSON object. A field that appears twice is refused: the derive does so for the fields that
/// a struct has, as long as it reads the text itself, not a `Value`, which keeps the last.
pub fn object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> serde_json::Result<T> {
    match serde_json::from_slice(json) {
        Ok(Object(value)) => Ok(value),
        // A wrong field is found before an error of syntax that follows it, which tells more.
        Err(error) if error.is_data() => {
            Err(serde_json::from_slice::<IgnoredAny>(json).err().unwrap_or(error))
        }
        Err(error) => Err(error),
    }
}

/// Reads a field for which `null` is a value, too: with `#[serde(default, deserialize_with)]`.
pub fn present<'a, T: Deserialize<'a>, D: Deserializer<'a>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A value that is written as an object.
struct Object<T>(T);

impl<'a, T: Deserialize<'a>> Deserialize<'a> for Object<T> {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'a, T: Deserialize<'a>> Visitor<'a> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Pair {
        a: u8,
        b: Option<u8>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(tag = "type", rename_all = "lowercase")]
    enum Tagged {
        One(Pair),
    }

    #[test]
    fn only_an_object_is_read_as_a_struct() {
        assert_eq!(object(br#" {"a":1,"b":2} "#).ok(), Some(Pair { a: 1, b: Some(2) }));
        assert_eq!(
            object(br#"{"a":1,"type":"one"}"#).ok(),
            Some(Tagged::One(Pair { a: 1, b: None }))
        );
        for other in ["[1,2]", r#"["one",1,2]"#, "[]", "null", "7", r#""one""#] {
            for error in [
                object::<Pair>(other.as_bytes()).unwrap_err(),
                object::<Tagged>(other.as_bytes()).unwrap_err(),
            ] {
                assert!(error.to_string().contains("expected an object"), "{other}: {error}");
                assert!(error.is_data(), "{other}: {error}");
            }
        }
    }

    #[test]
    fn a_field_may_appear_once() {
        for twice in [r#"{"type":"one","a":1,"a":2}"#, r#"{"type":"one","a":1,"b":1,"b":null}"#] {
            for error in [
                object::<Pair>(twice.as_bytes()).unwrap_err(),
                object::<Tagged>(twice.as_bytes()).unwrap_err(),
            ] {
                assert!(error.to_string().contains("duplicate field"), "{twice}: {error}");
            }
        }
    }

    #[test]
    fn what_is_not_json_is_told_before_a_wrong_field() {
        for broken in [r#"{"a":"x","b":}"#, r#"{"a":"x"} x"#, r#"{"a":"x""#, "[1,2"] {
            assert!(!object::<Pair>(broken.as_bytes()).unwrap_err().is_data(), "{broken}");
        }
    }
}
