from tonne.testing.serve import main

raise SystemExit(main())
