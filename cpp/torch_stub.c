/* Nothing: only the name of this library, libtorch.so, is used, and only while linking. See CMakeLists.txt. */
typedef int mosaic_torch_stub_is_empty_on_purpose;
