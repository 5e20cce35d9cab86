//! JSON that may be one thing or a list, read without building a tree of values, and refused as soon as it is too long. Knows no field.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// At most `MAX` items.
#[derive(Debug)]
pub struct Bounded<T, const MAX: usize>(pub Vec<T>);

impl<'de, T: DeserializeOwned, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: DeserializeOwned, const MAX: usize> Visitor<'de> for Items<T, MAX> {
            type Value = Bounded<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    push(&mut list, item, MAX)?;
                }
                Ok(Bounded(list))
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

/// Adds an item to a list that may hold `max`.
pub fn push<T, E: Error>(list: &mut Vec<T>, item: T, max: usize) -> Result<(), E> {
    if list.len() == max {
        return Err(E::custom(format_args!("more than {max} items, the most this server takes")));
    }
    list.push(item);
    Ok(())
}

/// A string or a list of at most `MAX` strings.
#[derive(Debug)]
pub struct Strings<const MAX: usize>(pub Vec<String>);

impl<'de, const MAX: usize> Deserialize<'de> for Strings<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany<const MAX: usize>;
        impl<'de, const MAX: usize> Visitor<'de> for OneOrMany<MAX> {
            type Value = Strings<MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Strings(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
                let Bounded(list) = Bounded::<String, MAX>::deserialize(SeqAccessDeserializer::new(items))?;
                Ok(Strings(list))
            }
        }
        deserializer.deserialize_any(OneOrMany::<MAX>)
    }
}

/// A token's id. JSON knows one kind of number: 6.0 is 6.
#[derive(Debug, Clone, Copy)]
pub struct TokenId(pub u32);

impl TokenId {
    /// The whole number that is spelled as a fraction or with an exponent.
    pub fn spelled<E: Error>(number: f64) -> Result<Self, E> {
        match number {
            _ if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) => Ok(Self(number as u32)),
            _ => Err(E::custom(format_args!("{number} is no token id"))),
        }
    }

    /// The number, if it is not too large.
    pub fn whole<E: Error>(number: u64) -> Result<Self, E> {
        u32::try_from(number).map(Self).map_err(|_| E::custom(format_args!("{number} is no token id")))
    }
}

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = TokenId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<TokenId, E> {
                TokenId::whole(number)
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<TokenId, E> {
                TokenId::spelled(number)
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// The numbers of tokens.
pub fn ids(tokens: Vec<TokenId>) -> Vec<u32> {
    tokens.into_iter().map(|TokenId(id)| id).collect()
}

/// At most `MAX` entries of an object, in the order given; of equal names all.
#[derive(Debug)]
pub struct Entries<V, const MAX: usize>(pub Vec<(String, V)>);

impl<'de, V: DeserializeOwned, const MAX: usize> Deserialize<'de> for Entries<V, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<V, const MAX: usize>(PhantomData<V>);
        impl<'de, V: DeserializeOwned, const MAX: usize> Visitor<'de> for Object<V, MAX> {
            type Value = Entries<V, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    push(&mut list, entry, MAX)?;
                }
                Ok(Entries(list))
            }
        }
        deserializer.deserialize_map(Object(PhantomData))
    }
}
