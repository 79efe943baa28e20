//! Numbers that messages tell.

/// The number that `text` has right before `words`.
pub fn number_before(text: &impl ToString, words: &str) -> u64 {
    let text = text.to_string();
    let Some((head, _)) = text.split_once(words) else { panic!("{words:?} is not in {text:?}") };
    let digits = head.len() - head.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    number(&head[head.len() - digits..], &text)
}

/// The number that `text` has right after `words`.
pub fn number_after(text: &impl ToString, words: &str) -> u64 {
    let text = text.to_string();
    let Some((_, tail)) = text.split_once(words) else { panic!("{words:?} is not in {text:?}") };
    number(tail.split(|c: char| !c.is_ascii_digit()).next().unwrap_or(""), &text)
}

fn number(digits: &str, text: &str) -> u64 {
    digits.parse().unwrap_or_else(|_| panic!("no number there: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_beside_its_words() {
        let text = "no memory for 12 bytes of f at 3: 45 are pinned, 6 held";
        assert_eq!(number_before(&text, " are pinned"), 45);
        assert_eq!(number_before(&text, " held"), 6);
        assert_eq!((number_after(&text, " at "), number_after(&text, "memory for ")), (3, 12));
    }
}
