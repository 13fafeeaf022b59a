//! Nsight Compute's units: `Gbyte/second`, `usecond`, `inst/cycle`, `%`.

/// The nouns that a prefix may stand before; longest first, since `s` ends many of them.
const NOUNS: [&str; 12] =
    ["request", "register", "second", "sector", "thread", "block", "cycle", "byte", "warp", "inst", "hz", "s"];

/// What a number in `unit` is multiplied with to be in the plain unit (bytes, seconds, bytes per second, ...), and that
/// unit's name. `None`: not a unit that we know.
pub(super) fn plain(unit: &str) -> Option<(f64, String)> {
    match unit {
        "" | "%" => return Some((1.0, unit.into())),
        _ => {}
    }
    let mut parts = unit.split('/');
    let (factor, mut name) = part(parts.next()?)?;
    let factor = match parts.next() {
        None => factor,
        Some(below) => {
            let (per, noun) = part(below)?;
            name = format!("{name}/{noun}");
            factor / per
        }
    };
    parts.next().is_none().then_some((factor, name))
}

fn part(text: &str) -> Option<(f64, String)> {
    let noun = NOUNS.iter().find(|noun| text.ends_with(**noun))?;
    let factor = match text.strip_suffix(noun)? {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "K" | "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        _ => return None,
    };
    Some((factor, if *noun == "s" { "second" } else { noun }.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_count_above_and_below() {
        let cases = [
            ("", Some((1.0, ""))),
            ("%", Some((1.0, "%"))),
            ("usecond", Some((1e-6, "second"))),
            ("ns", Some((1e-9, "second"))),
            ("byte", Some((1.0, "byte"))),
            ("Kbyte/block", Some((1e3, "byte/block"))),
            ("Gbyte/second", Some((1e9, "byte/second"))),
            ("byte/nsecond", Some((1e9, "byte/second"))),
            ("Gsector/s", Some((1e9, "sector/second"))),
            ("inst/cycle", Some((1.0, "inst/cycle"))),
            ("furlong", None),
            ("Xbyte", None),
            ("byte/second/block", None),
        ];
        for (unit, want) in cases {
            let got = plain(unit);
            match (&got, want) {
                (Some((f, n)), Some((wf, wn))) => assert!((f / wf - 1.0).abs() < 1e-12 && n == wn, "{unit}: {got:?}"),
                (None, None) => {}
                _ => panic!("{unit}: {got:?}"),
            }
        }
    }
}
