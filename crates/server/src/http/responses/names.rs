//! Names of responses and of their items. The name of an item tells where it stands, so that items are found without an index. Knows no wording.

const RESPONSE: &str = "resp_";

/// Letters of what is unique in a name.
const UNIQUE: usize = 32;

/// The name of a response, which nothing else has, and nobody can guess.
pub fn response() -> String {
    format!("{RESPONSE}{}", uuid::Uuid::new_v4().simple())
}

/// The name of an item of the answer of this response, by its place there.
pub fn item(kind: &str, response: &str, index: usize) -> String {
    format!("{kind}_{}{index:04}", unique(response))
}

/// The name of an item that this response was asked with, by its place among these. It is none of [`item`]'s.
pub fn input_item(kind: &str, response: &str, index: usize) -> String {
    format!("{kind}_{}i{index}", unique(response))
}

/// The response in whose answer the item of this name may stand, and its place there.
pub fn place(item: &str) -> Option<(String, usize)> {
    let (_, place) = item.split_once('_')?;
    let (unique, index) = place.split_at_checked(UNIQUE)?;
    Some((format!("{RESPONSE}{unique}"), index.parse().ok()?))
}

fn unique(response: &str) -> &str {
    response.trim_start_matches(RESPONSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_item_tells_its_place() {
        let id = response();
        assert_eq!(place(&item("msg", &id, 0)), Some((id.clone(), 0)));
        assert_eq!(place(&item("fc", &id, 12_345)), Some((id.clone(), 12_345)));
        for other in ["", "msg", "msg_", "msg_1", &id, &input_item("msg", &id, 3), &"€".repeat(40), "_€€€€€€€€€€€€"]
        {
            assert_eq!(place(other), None, "{other}");
        }
    }
}
