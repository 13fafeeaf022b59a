use super::*;

fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(Into::into).collect()
}

#[test]
fn options_that_hide_the_role_from_python_are_found() {
    // Guards against a program that runs without its role and does not say so.
    let cases = [
        ("-I x.py", Some('I')),
        ("-uE x.py", Some('E')),
        ("-X dev -S x.py", Some('S')),
        ("-Xdev -I", Some('I')),
        ("-W error -u -I", Some('I')),
        ("--check-hash-based-pycs always", None),
        ("x.py -I", None),
        ("-m pkg -I", None),
        ("-c pass -S", None),
        ("-um I", None),
        ("-W S x.py", None),
        ("- -I", None),
        ("", None),
    ];
    for (arguments, want) in cases {
        assert_eq!(isolating_option(&words(arguments)), want, "{arguments}");
    }
}

#[test]
fn a_bound_must_be_a_ratio() {
    assert_eq!(slo("1.25"), Ok(1.25));
    for text in ["0.9", "nan", "inf", "101", "", "fast"] {
        assert!(slo(text).is_err(), "{text}");
    }
}

#[test]
fn a_path_that_the_variable_would_split_is_refused() {
    // Guards against a role that silently fails to apply: the loader and Python split at these bytes.
    let variable = "MOSAIC_TEST_UNSET";
    assert_eq!(prepend(Path::new("/a/b"), variable, b": ").unwrap(), "/a/b");
    assert_eq!(prepend(Path::new("/a b"), variable, b":").unwrap(), "/a b");
    for path in ["/a:b", "/a b"] {
        let error = prepend(Path::new(path), variable, b": ").unwrap_err().to_string();
        assert!(error.starts_with(&format!("{variable} cannot hold the path \"{path}\"")), "{error}");
    }
}
